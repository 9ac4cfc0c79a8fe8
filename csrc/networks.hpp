// The prediction and joint networks of a transducer, run on a few rows at a time. hf_ngpulm/search/networks/networks.py
// describes the weights.
#pragma once
#include <memory>

#include "products.hpp"
#include "vectors.hpp"

// See hf_ngpulm/search/networks/cpu.py. `layers` [L, 4] are the addresses of each layer's `weight_ih` [4H, X], `weight_hh`
// [4H, H], `bias_ih` and `bias_hh` [4H]. There are none if the prediction network is a convolution over the last `places`
// tokens.
struct NgpulmNetworks {
  const int64_t* layers;
  const float *embedding, *convolution, *convolution_bias, *projection, *projection_bias, *head, *head_bias;
  float* laid_out;
  int64_t num_layers, tokens, embedded, places, size, width, outputs, activation, separate_blank;
};

// The data of the networks in `slots` slots. The state [parts, slots, H] is the hidden states of all layers followed by the
// cells, or the embeddings of the tokens before the last one. The predictions are [slots, D].
struct NgpulmSlots {
  float *states, *predictions;
  int64_t slots, parts;
};

namespace ngpulm {

// The layers in the layout for products, stored in `laid_out`.
struct LaidOut {
  explicit LaidOut(const NgpulmNetworks& networks);
  void fill(const NgpulmNetworks& networks) const;

  Layer inputs, recurrent;   // the LSTM's first layer: products with inputs (plus biases), and with hidden states
  std::vector<Layer> above;  // higher layers: products with inputs and hidden states side by side
  Layer projection, head;
  int64_t floats = 0;
};

// Runs the networks: predictions of up to `most` rows at once, and logits of up to `most_joined` lines.
class Networks {
 public:
  Networks(const NgpulmNetworks& networks, const NgpulmSlots& slots, int64_t most, int64_t most_joined);

  // The joint network in two steps: first the head's input for a frame and the prediction in a slot, then the logits of all
  // lines.
  void hear(int64_t line, const float* frame, int64_t slot);
  void join(int64_t lines, int64_t blank);
  float* logits(int64_t line) { return logits_.data() + line * stride(); }
  int64_t stride() const { return layers_.head.outputs; }

  // The internal LM (Meng et al., SLT 2021): write the log-probabilities of the token classes (-inf for the blank) after the
  // predictions in some slots.
  void ask_internal_lm(int64_t count, const int64_t* slots, int64_t blank, int64_t classes);
  const float* internal_lm(int64_t place) const { return internal_.data() + place * stride(); }

  // Let the prediction network read one token: from the states in some slots to states and predictions in other slots.
  void predict(int64_t count, const int64_t* sources, const int64_t* tokens, const int64_t* targets);
  // Write the prediction before the first token to a slot.
  void begin(int64_t slot, int64_t blank);
  void copy(int64_t source, int64_t target);

 private:
  float* state(int64_t part, int64_t slot) { return slots_.states + (part * slots_.slots + slot) * networks_.size; }
  float* prediction(int64_t slot) { return slots_.predictions + slot * networks_.width; }
  void activate(float* numbers) const;
  void lstm(int64_t count, const int64_t* sources, const int64_t* tokens, const int64_t* targets);
  void look_up(int64_t count, const int64_t* tokens);
  void recur(int64_t count, const int64_t* slots);
  void open_gates(const float* gates, float* cell, float* hidden, float* below) const;
  void convolve(int64_t line, int64_t source, int64_t token, int64_t target);

  const NgpulmNetworks& networks_;
  const NgpulmSlots& slots_;
  LaidOut layers_;
  Floats joined_, logits_, internal_, embedded_, before_, gates_, below_, projected_;
  // Products of the LSTM's first layer with tokens' embeddings: the line of `table_` for each token, or -1 if there is none
  // yet.
  std::vector<int32_t> in_table_;
  Floats table_;
  int64_t used_ = 0;
  // Products of that layer with the hidden states in slots, as far as they are computed.
  std::unique_ptr<float[]> recurrent_;
  std::vector<uint8_t> has_recurrent_;
  std::vector<int64_t> missing_;
};

}  // namespace ngpulm
