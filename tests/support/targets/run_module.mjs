/* Run an exported module as run_library.c runs a library: run_module.mjs MODULE SHAPE... */

import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [path, ...shapes] = process.argv.slice(2);
const ARRAYS = {
  float32: Float32Array, float64: Float64Array, int8: Int8Array, uint8: Uint8Array,
  int16: Int16Array, uint16: Uint16Array, int32: Int32Array, uint32: Uint32Array,
  int64: BigInt64Array, uint64: BigUint64Array, bool: Uint8Array,
  float16: Uint16Array, bfloat16: Uint16Array,
};
try {
  const { load } = await import(pathToFileURL(path));
  const model = await load();
  const feeds = {};
  model.inputs.forEach((port, n) => {
    const dims = shapes[n] === "-" ? [] : shapes[n].split("x").map(Number);
    const bytes = readFileSync(`in${n}`);
    const data = new ARRAYS[port.type](bytes.buffer.slice(bytes.byteOffset,
                                                          bytes.byteOffset + bytes.length));
    feeds[port.name] = { data, dims };
  });
  model.run(feeds);
  const found = model.run(feeds);
  const dims = model.outputs.map((port, n) => {
    const { data, dims } = found[port.name];
    writeFileSync(`out${n}`, new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    return dims;
  });
  writeFileSync("shapes", JSON.stringify(dims));
  model.close();
  console.log("0");
} catch (error) {
  console.log(error.message);
}
