const ARRAYS = {
  float32: Float32Array, float64: Float64Array, int8: Int8Array, uint8: Uint8Array,
  int16: Int16Array, uint16: Uint16Array, int32: Int32Array, uint32: Uint32Array,
  int64: BigInt64Array, uint64: BigUint64Array, bool: Uint8Array,
  float16: Uint16Array, bfloat16: Uint16Array,
};

/* Return the bytes of a file: a URL, a path beside this module, a response, or bytes. */
async function readBytes(source) {
  if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) return source;
  if (typeof Response !== "undefined" && source instanceof Response) return source.arrayBuffer();
  const url = new URL(source, import.meta.url);
  if (url.protocol === "file:") {
    const { readFile } = await import("node:fs/promises");
    return readFile(url);
  }
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url} cannot be read: ${response.status}`);
  return response.arrayBuffer();
}

/* What a libc may ask of its host: the model opens no file. */
const HOST = new Proxy({}, { get: () => () => 52 /* ENOSYS */ });

export class Model {
  #exports; #functions = {}; #buffers = []; #weights; #handle; #tables;
  inputs = MODEL.inputs;
  outputs = MODEL.outputs;

  constructor(instance, weights) {
    this.#exports = instance.exports;
    this.#exports._initialize?.();
    for (const name of MODEL.functions)
      this.#functions[name] = this.#exports[`${MODEL.name}_${name}`];
    const bytes = new Uint8Array(weights.buffer ?? weights, weights.byteOffset ?? 0,
                                 weights.byteLength);
    this.#tables = this.#allocate(8 * (MODEL.inputs.length + MODEL.outputs.length + 2)
                                  + 8 * (MODEL.sizes.length + 64) + 1024);
    this.#weights = this.#allocate(MODEL.weightsBytes);
    new Uint8Array(this.#exports.memory.buffer)
      .set(bytes.subarray(0, MODEL.weightsBytes), this.#weights);
    this.#handle = this.#functions.open(this.#weights, this.#tables);
    if (this.#handle !== 0 && bytes.length !== MODEL.weightsBytes)
      throw new Error(`${MODEL.model}: the weights have ${bytes.length} bytes, and must have `
                      + `${MODEL.weightsBytes}`);
    if (this.#handle === 0) {
      const code = new DataView(this.#exports.memory.buffer).getInt32(this.#tables, true);
      const text = this.#text(this.#functions.error(code));
      this.#functions.free(this.#weights);
      throw new Error(`${MODEL.model}: ${text}`);
    }
  }

  /* Compute the outputs. feeds: for each input an array, or {data, dims} where its shape is not
     known before. Returns {data, dims} for each output; the arrays are copies. */
  run(feeds) {
    if (this.#handle === 0) throw new Error(`${MODEL.model} is closed`);
    const given = MODEL.inputs.map((port) => this.#readFeed(port, feeds[port.name]));
    for (const name of Object.keys(feeds))
      if (!MODEL.inputs.some((port) => port.name === name))
        throw new Error(`${MODEL.model} has no input ${name}: it has `
                        + MODEL.inputs.map((port) => port.name).join(", "));
    const addresses = given.map((x, n) => (x === null ? 0 : this.#copyIn(n, x.data)));
    const sizes = this.#inferSizes(given);
    const shapes = MODEL.outputs.map((port, n) => this.#outputShape(port, n, sizes));
    const results = MODEL.outputs.map((port, n) =>
      this.#reserve(MODEL.inputs.length + n, shapes[n].bytes));
    const [ins, outs] = [this.#tables, this.#tables + 4 * (MODEL.inputs.length + 1)];
    const view = new DataView(this.#exports.memory.buffer);
    addresses.forEach((at, n) => view.setUint32(ins + 4 * n, at, true));
    results.forEach((at, n) => view.setUint32(outs + 4 * n, at, true));
    this.#check(this.#functions.run(this.#handle, ins, outs, ...(sizes === null ? [] : [sizes])));
    const found = {};
    MODEL.outputs.forEach((port, n) => {
      const length = shapes[n].dims.reduce((a, b) => a * b, 1);
      const data = new ARRAYS[port.type](this.#exports.memory.buffer, results[n], length).slice();
      found[port.name] = { data, dims: shapes[n].dims };
    });
    return found;
  }

  /* Free the model's memory. */
  close() {
    if (this.#handle === 0) return;
    this.#functions.close(this.#handle);
    for (const { at } of this.#buffers.filter(Boolean)) this.#functions.free(at);
    this.#functions.free(this.#weights);
    this.#functions.free(this.#tables);
    this.#handle = 0;
  }

  #allocate(bytes) {
    const at = this.#functions.allocate(Math.max(bytes, 1));
    if (at === 0) throw new Error(`${MODEL.model}: out of memory for ${bytes} bytes`);
    return at;
  }

  /* Return memory for so many bytes, which is kept for the next run. */
  #reserve(n, bytes) {
    const own = this.#buffers[n];
    if (own !== undefined && own.bytes >= bytes) return own.at;
    if (own !== undefined) this.#functions.free(own.at);
    this.#buffers[n] = undefined;
    this.#buffers[n] = { at: this.#allocate(bytes), bytes };
    return this.#buffers[n].at;
  }

  #readFeed(port, feed) {
    if (feed === undefined) {
      if (port.isOptional) return null;
      throw new Error(`${MODEL.model}: no value for input ${port.name}`);
    }
    const data = ArrayBuffer.isView(feed) ? feed : feed.data;
    const kind = ARRAYS[port.type];
    if (!(data instanceof kind))
      throw new Error(`input ${port.name} is ${data?.constructor?.name}, and must be ${kind.name}`);
    const isFixed = port.dims.every((d) => typeof d === "number");
    const dims = ArrayBuffer.isView(feed) || feed.dims === undefined ? (isFixed ? port.dims : null)
                                                                    : [...feed.dims];
    if (dims === null)
      throw new Error(`input ${port.name} needs dims: {data, dims: [${port.dims.join(", ")}]}`);
    const fits = dims.length === port.dims.length
      && port.dims.every((d, axis) => typeof d !== "number" || d === dims[axis]);
    if (!fits)
      throw new Error(`input ${port.name} has the shape [${dims}], and must have [`
                      + `${port.dims.join(", ")}]`);
    const length = dims.reduce((a, b) => a * b, 1);
    if (data.length !== length)
      throw new Error(`input ${port.name} has ${data.length} elements, and must have ${length}`);
    return { data, dims };
  }

  #copyIn(n, data) {
    const at = this.#reserve(n, data.byteLength);
    const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    new Uint8Array(this.#exports.memory.buffer).set(bytes, at);
    return at;
  }

  /* Return the address of the symbolic sizes; null if there are none. */
  #inferSizes(given) {
    if (MODEL.sizes.length === 0) return null;
    const total = given.reduce((sum, x) => sum + (x === null ? 0 : x.dims.length), 0);
    const at = this.#reserve(MODEL.inputs.length + MODEL.outputs.length,
                             8 * (given.length + MODEL.sizes.length + total + 8));
    const sizes = at + 8 * given.length;
    const view = new DataView(this.#exports.memory.buffer);
    let next = sizes + 8 * MODEL.sizes.length;
    given.forEach((x, n) => {
      view.setUint32(at + 4 * n, x === null ? 0 : next, true);
      for (const d of x === null ? [] : x.dims) {
        view.setBigInt64(next, BigInt(d), true);
        next += 8;
      }
    });
    this.#check(this.#functions.infer_sizes(this.#handle, at, sizes));
    return sizes;
  }

  #outputShape(port, n, sizes) {
    if (sizes === null) return { dims: port.dims, bytes: port.bytes };
    const at = this.#tables + 4 * (MODEL.inputs.length + MODEL.outputs.length + 2);
    const [bytes, dims] = [at + 8 - (at % 8), at + 16 - (at % 8)];
    const failed = this.#functions.output_shape(n, sizes, dims, bytes);
    if (failed !== 0) this.#check(this.#functions.reserve(this.#handle, sizes) || failed);
    const view = new DataView(this.#exports.memory.buffer);
    return {
      dims: port.dims.map((_, axis) => Number(view.getBigInt64(dims + 8 * axis, true))),
      bytes: view.getUint32(bytes, true),
    };
  }

  #check(code) {
    if (code === 0) return;
    const at = this.#tables, size = 512;
    const length = this.#functions.message(this.#handle, at, size);
    const text = length > 0 ? this.#text(at) : this.#text(this.#functions.error(code));
    throw new Error(`${MODEL.model}: ${text}`);
  }

  #text(at) {
    const bytes = new Uint8Array(this.#exports.memory.buffer);
    return new TextDecoder().decode(bytes.slice(at, bytes.indexOf(0, at)));
  }
}

/* Load the model. sources: where its files are, if not beside this module: URLs, responses, or
   bytes. */
export async function load(sources = {}) {
  const [code, weights] = await Promise.all(
    [readBytes(sources.wasm ?? MODEL.files.wasm), readBytes(sources.weights ?? MODEL.files.weights)]);
  const { instance } = await WebAssembly.instantiate(code, { wasi_snapshot_preview1: HOST });
  return new Model(instance, weights);
}
