/* Run an exported module and onnxruntime-web in turns; see bench_wasm.py. Prints JSON.

   bench_wasm.mjs MODULE MODEL FOLDER ROUNDS SIZES: FOLDER has node_modules; SIZES: values of symbolic
   sizes, by name. */

import { createRequire } from "node:module";
import { performance } from "node:perf_hooks";
import { pathToFileURL } from "node:url";

const [module, path, folder, rounds, sizesText] = process.argv.slice(2);
const sizes = JSON.parse(sizesText);
const ARRAYS = {
  float32: Float32Array, int64: BigInt64Array, int32: Int32Array, bool: Uint8Array,
  uint8: Uint8Array, int8: Int8Array,
};

let begin = performance.now();
const { load } = await import(pathToFileURL(module));
const model = await load();
const ourLoad = performance.now() - begin;

const ort = createRequire(`${folder}/`)("onnxruntime-web");
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";
begin = performance.now();
const session = await ort.InferenceSession.create(path, { executionProviders: ["wasm"] });
const theirLoad = performance.now() - begin;

let state = 1;
function draw() {
  state = (state * 1103515245 + 12345) % 2147483648;
  return state / 1073741824 - 1;
}
const feeds = {}, tensors = {};
for (const port of model.inputs) {
  const dims = port.dims.map((d) => (typeof d === "number" ? d : sizes[d] ?? 1));
  const length = dims.reduce((a, b) => a * b, 1);
  const values = { float32: draw, int64: () => BigInt(draw() > 0), bool: () => 1 };
  const data = ARRAYS[port.type].from({ length }, values[port.type] ?? (() => 1));
  feeds[port.name] = { data, dims };
  tensors[port.name] = new ort.Tensor(port.type, data, dims);
}

const ours = [], theirs = [];
let got, wanted;
for (let round = 0; round < Number(rounds); round++) {
  begin = performance.now();
  got = model.run(feeds);
  ours.push(performance.now() - begin);
  begin = performance.now();
  wanted = await session.run(tensors);
  theirs.push(performance.now() - begin);
}
let error = 0;
for (const { name } of model.outputs) {
  const [a, b] = [got[name].data, wanted[name].data];
  if (a.length !== b.length) throw new Error(`${name} has ${a.length} elements, not ${b.length}`);
  let most = 0, squares = 0;
  b.forEach((x, n) => {
    most = Math.max(most, Math.abs(Number(a[n]) - Number(x)));
    squares += Number(x) ** 2;
  });
  error = Math.max(error, most / Math.sqrt(squares / b.length + 1e-30));
}
const median = (all) => all.sort((a, b) => a - b)[all.length >> 1];
console.log(JSON.stringify({ ours: median(ours), theirs: median(theirs), ourLoad, theirLoad, error }));
process.exit(0);
