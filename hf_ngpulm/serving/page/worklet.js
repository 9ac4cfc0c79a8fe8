// Hands the microphone's audio on in pieces of about 100 ms, as 16-bit samples, until it is told to end. A stopped track goes
// on as silence, which is not sent.
class Pieces extends AudioWorkletProcessor {
  constructor() {
    super();
    this.piece = new Int16Array(Math.round(sampleRate / 10));
    this.filled = 0;
    this.ended = false;
    this.port.onmessage = () => {
      if (this.ended) return;
      this.ended = true;
      this.send();
      this.port.postMessage("end");
    };
  }

  send() {
    if (this.filled) {
      const piece = this.piece.slice(0, this.filled);
      this.port.postMessage(piece.buffer, [piece.buffer]);
      this.filled = 0;
    }
  }

  process(inputs) {
    if (this.ended) return false;
    for (const sample of inputs[0][0] ?? []) {
      this.piece[this.filled++] = Math.round(Math.max(-1, Math.min(1, sample)) * 32767);
      if (this.filled === this.piece.length) this.send();
    }
    return true;
  }
}

registerProcessor("pieces", Pieces);
