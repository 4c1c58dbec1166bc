"use strict";
// The arithmetic of the network: layers of sigmoid units, and the file format of oddlot/demo/model_file.py.

const MODEL_FORMAT = 1;
const SIDE = 28;

class ModelError extends Error {}

function crc32(bytes) {
  const table = Uint32Array.from({ length: 256 }, (_, number) => {
    for (let bit = 0; bit < 8; bit++) number = number & 1 ? 0xedb88320 ^ (number >>> 1) : number >>> 1;
    return number;
  });
  let sum = 0xffffffff;
  for (const byte of bytes) sum = table[(sum ^ byte) & 255] ^ (sum >>> 8);
  return (sum ^ 0xffffffff) >>> 0;
}

function sigmoid(values) {
  return values.map(value => 1 / (1 + Math.exp(-value)));
}

function softmax(values) {
  const most = Math.max(...values), powers = values.map(value => Math.exp(value - most));
  const sum = powers.reduce((one, other) => one + other, 0);
  return powers.map(power => power / sum);
}

class Layer {
  /** `entry` describes the arrays of the layer in `buffer`. Rows of int8 are multiplied by their scale. */
  constructor(entry, buffer) {
    [this.outputs, this.inputs] = entry.shape;
    const count = this.outputs * this.inputs;
    this.bias = new Float32Array(buffer, entry.bias, this.outputs);
    if (entry.dtype === "float32") {
      this.weight = new Float32Array(buffer, entry.weight, count);
      return;
    }
    const rows = new Int8Array(buffer, entry.weight, count), scale = new Float32Array(buffer, entry.scale, this.outputs);
    this.weight = Float32Array.from(rows, (value, index) => value * scale[Math.floor(index / this.inputs)]);
  }

  apply(values) {
    const { weight, inputs } = this;
    return this.bias.map((bias, output) => {
      let sum = bias;
      for (let input = 0, at = output * inputs; input < inputs; input++, at++) sum += weight[at] * values[input];
      return sum;
    });
  }
}

class DigitNetwork {
  /** Throws ModelError if the files are damaged. */
  constructor(description, buffer) {
    if (description.format !== MODEL_FORMAT)
      throw new ModelError(`the model has the format ${description.format}, and the page reads ${MODEL_FORMAT}`);
    if (buffer.byteLength !== description.bytes || crc32(new Uint8Array(buffer)) !== description.crc32)
      throw new ModelError("the file with the weights is damaged");
    this.about = description.about;
    for (const part of ["encoder", "decoder", "classifier"])
      this[part] = description[part].map(entry => new Layer(entry, buffer));
    this.sharesHidden = description.classifier_input === "hidden";
    this.codeSize = this.encoder.at(-1).outputs;
  }

  /** The widths of the autoencoder, such as 784-128-30-128-784. */
  get widths() {
    return [this.encoder[0].inputs, ...[...this.encoder, ...this.decoder].map(layer => layer.outputs)].join("-");
  }

  encode(pixels) {
    return DigitNetwork.through(this.encoder, pixels);
  }

  decode(code) {
    return sigmoid(DigitNetwork.through(this.decoder, code));
  }

  classify(pixels) {
    const inputs = this.sharesHidden ? sigmoid(this.encoder[0].apply(pixels)) : pixels;
    return DigitNetwork.through(this.classifier, inputs);
  }

  certainties(pixels) {
    return softmax(this.classify(pixels));
  }

  /** Applies layers with a sigmoid between them. */
  static through(layers, values) {
    return layers.reduce((inputs, layer, number) => layer.apply(number ? sigmoid(inputs) : inputs), values);
  }
}
