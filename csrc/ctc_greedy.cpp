// Greedy CTC search with language models. hf_ngpulm/search/ctc_greedy is the definition. The automata are queried only at
// frames that may emit a token.
#include "ctc_rows.hpp"

using namespace ngpulm;

namespace {

enum Rule : int32_t { LABEL, RUN, STAY };  // rules by which a frame continues the previous label

// State of a row's search, one array after the other in a block of memory (`greedy_of` in hf_ngpulm/search/ctc_greedy/cpu.py).
struct Row {
  double *acoustic_score, *lm_scores;  // [M]
  int32_t *states, *before;            // [M]; label and best class of the frame before

  Row(void* block, int64_t row, int64_t num_automata) {
    acoustic_score = reinterpret_cast<double*>(static_cast<char*>(block) + row * (16 + (12 * num_automata + 7) / 8 * 8));
    lm_scores = acoustic_score + 1;
    before = reinterpret_cast<int32_t*>(lm_scores + num_automata);
    states = before + 2;
  }
};

template <class Token>
class GreedySearch {
 public:
  GreedySearch(const Automaton<Token>& lm, const NgpulmFrames& frames, int64_t num_automata, int32_t rule)
      : lm(lm),
        frames(frames),
        num_automata(num_automata),
        rule(rule),
        candidates(std::min<int64_t>(lm.vocab_size, frames.classes)),
        added(lm.vocab_size),
        one(lm.vocab_size),
        sums(candidates) {}

  // Label the frames of row `i` of the batch. `max_probs` [T], unless null, gets the highest probability of each frame. Returns
  // the first frame with NaN or infinity, or -1.
  int32_t run(int64_t i, const float* weights, float stay_cost, const Row& row, int32_t* labels, float* max_probs) {
    int32_t &before = row.before[0], &best_before = row.before[1], *states = row.states;
    bool is_known = false;  // whether `added` belongs to the row's states
    for (int32_t number = 0; number < frames.lengths[i]; ++number) {
      const Frame frame = frame_of(frames, i, number);
      if (frame.is_broken()) return number;
      if (max_probs) max_probs[number] = frame.max_prob(frames.blank);
      const int32_t best = best_class(frame);
      int32_t label = best;
      if (best != frames.blank && best < lm.vocab_size) {
        const bool repeats =
            before != frames.blank && ((rule == LABEL && best == before) || (rule == RUN && best == best_before));
        label = before;
        if (!repeats) {
          if (!is_known) add_scores(weights, states);
          is_known = true;
          label = choose(frame, before, stay_cost);
          if (label < 0) label = before != frames.blank ? before : best;  // no label is possible
        }
        if (label != before) {
          is_known = false;
          for (int64_t m = 0; m < num_automata; ++m) {
            const Step step = lm.step(states[m], label);
            states[m] = step.state;
            row.lm_scores[m] += step.score;
          }
        }
      }
      labels[number] = label;
      *row.acoustic_score += frame.log_prob(label);
      before = label;
      best_before = best;
    }
    return -1;
  }

 private:
  const Automaton<Token>& lm;
  const NgpulmFrames& frames;
  const int64_t num_automata;
  const int32_t rule;
  const int32_t candidates;       // classes that the automata score
  std::vector<float> added, one;  // weighted scores of all automata by token, and those of one
  std::vector<float> sums;        // logits plus `added`
  std::vector<int32_t> chain;     // room for a backoff chain

  // Return the likeliest class; in a tie, the first one.
  int32_t best_class(const Frame& frame) const {
    const float highest = std::max(frame.highest, frame.logits[frames.blank]);
    return int32_t(std::find(frame.logits, frame.logits + frames.classes, highest) - frame.logits);
  }

  void add_scores(const float* weights, const int32_t* states) {
    std::fill(added.begin(), added.end(), 0.f);
    for (int64_t m = 0; m < num_automata; ++m) {
      if (weights[m] == 0.f) continue;
      lm.scores(states[m], chain, one.data());
      for (int32_t token = 0; token < lm.vocab_size; ++token) added[token] += weights[m] * one[token];
    }
  }

  // Return the best of the tokens that the automata score, or the previous label; -1 if none is possible.
  int32_t choose(const Frame& frame, int32_t before, float stay_cost) {
    for (int32_t token = 0; token < candidates; ++token) sums[token] = frame.logits[token] + added[token];
    if (before < candidates) sums[before] = rule == STAY ? frame.logits[before] - stay_cost : NEG_INF;
    if (frames.blank < candidates) sums[frames.blank] = NEG_INF;
    const float highest = highest_of(sums.data(), candidates);
    return highest > NEG_INF ? int32_t(std::find(sums.begin(), sums.end(), highest) - sums.begin()) : -1;
  }
};

}  // namespace

// Label the frames of a batch; `weights` and `stay_costs` are [S, num_automata] and [S]. The labels go to `tails`, or to
// `labels` [N, width], which come in as blanks. `confidences` [N, width] may be null; they are computed here if they are the
// highest probabilities, `are_max_probs`. Returns -1, or the first row with a state that doesn't exist.
NGPULM_EXPORT int64_t ngpulm_ctc_greedy(int64_t first, int64_t last, const NgpulmAutomaton* automaton,
                                        const NgpulmFrames* frames, const float* weights, const float* stay_costs,
                                        int64_t num_automata, int32_t rule, const NgpulmCtcRows* batch, int64_t width,
                                        float* confidences, int64_t are_max_probs, const NgpulmTails* tails,
                                        int32_t* labels, int32_t* bad_frames) {
  return with_automaton(*automaton, [&](auto& lm) -> int64_t {
    GreedySearch search(lm, *frames, num_automata, rule);
    std::vector<int32_t> own_labels;
    for (int64_t i = first; i < last; ++i) {
      const int64_t at = row_of(*batch, i), length = frames->lengths[i];
      const Row row(batch->states, at, num_automata);
      if (!lm.has_all(row.states, num_automata)) return at;
      if (tails) own_labels.resize(length);
      int32_t last_label = row.before[0], *row_labels = tails ? own_labels.data() : labels + i * width;
      float* row_confidences = confidences ? confidences + i * width : nullptr;
      bad_frames[i] = search.run(i, weights + at * num_automata, stay_costs[at], row, row_labels,
                                 are_max_probs ? row_confidences : nullptr);
      if (tails && bad_frames[i] < 0)
        follow_labels(*tails, at, row_labels, length, batch->firsts[at], frames->blank, last_label, batch->sums[at],
                      row_confidences);
    }
    return -1;
  });
}
