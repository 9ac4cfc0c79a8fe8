// Greedy CTC search with language models (hf_ngpulm/search/ctc_greedy says what it does). The automata are asked only at frames
// that may emit a token.
#include "automaton.hpp"
#include "frames.hpp"

// See hf_ngpulm/search/ctc_greedy/cpu.py.
struct NgpulmGreedyLabels {
  int32_t* labels;
  float *acoustic_scores, *lm_scores;
  int32_t *states, *bad_frames, *before;
};

using namespace ngpulm;

namespace {

enum Rule : int32_t { LABEL, RUN, STAY };  // when a frame goes on with the label before it

template <class Token>
class GreedySearch {
 public:
  GreedySearch(const Automaton<Token>& lm, const NgpulmFrames& frames, int64_t num_automata, int32_t rule)
      : lm(lm), frames(frames), num_automata(num_automata), rule(rule), candidates(std::min<int64_t>(lm.vocab_size, frames.classes)),
        added(lm.vocab_size), one(lm.vocab_size), sums(candidates) {}

  // Label the frames of a row; the first one that is broken, or -1.
  int32_t run(int64_t row, const float* weights, float stay_cost, int32_t* labels, float& acoustic_score, float* lm_scores,
              int32_t* states, int32_t* ends) {
    int32_t &before = ends[0], &best_before = ends[1];
    bool is_known = false;  // whether `added` belongs to the row's states
    for (int32_t number = 0; number < frames.lengths[row]; ++number) {
      const Frame frame = frame_of(frames, row, number);
      if (frame.is_broken()) return number;
      const int32_t best = best_class(frame);
      int32_t label = best;
      if (best != frames.blank && best < lm.vocab_size) {
        const bool repeats = before != frames.blank && ((rule == LABEL && best == before) || (rule == RUN && best == best_before));
        label = before;
        if (!repeats) {
          if (!is_known) add_scores(weights, states);
          is_known = true;
          label = choose(frame, before, stay_cost);
          if (label < 0) label = before != frames.blank ? before : best;  // nothing is possible
        }
        if (label != before) {
          is_known = false;
          for (int64_t m = 0; m < num_automata; ++m) {
            const Step step = lm.step(states[m], label);
            states[m] = step.state;
            lm_scores[m] += step.score;
          }
        }
      }
      labels[number] = label;
      acoustic_score += frame.log_prob(label);
      before = label;
      best_before = best;
    }
    lm.finish(states, num_automata);
    return -1;
  }

 private:
  const Automaton<Token>& lm;
  const NgpulmFrames& frames;
  const int64_t num_automata;
  const int32_t rule;
  const int32_t candidates;        // classes that the automata score
  std::vector<float> added, one;   // what all automata add to each token's score, and what one does
  std::vector<float> sums;         // scores with what they add
  std::vector<int32_t> chain;      // of states that back off

  // The first of the likeliest classes.
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

  // The best of the tokens that the automata score, or the label before; -1 if none is possible.
  int32_t choose(const Frame& frame, int32_t before, float stay_cost) {
    for (int32_t token = 0; token < candidates; ++token) sums[token] = frame.logits[token] + added[token];
    if (before < candidates) sums[before] = rule == STAY ? frame.logits[before] - stay_cost : NEG_INF;
    if (frames.blank < candidates) sums[frames.blank] = NEG_INF;
    const float highest = highest_of(sums.data(), candidates);
    return highest > NEG_INF ? int32_t(std::find(sums.begin(), sums.end(), highest) - sums.begin()) : -1;
  }

};

}  // namespace

// `weights` and `stay_costs` are [B, num_automata] and [B], `width` the frames of a row of labels. Returns -1, or the first row with
// a state that doesn't exist.
NGPULM_EXPORT int64_t ngpulm_ctc_greedy(int64_t first, int64_t last, const NgpulmAutomaton* automaton, const NgpulmFrames* frames,
                                        const float* weights, const float* stay_costs, int64_t num_automata, int32_t rule, int64_t width,
                                        const NgpulmGreedyLabels* found) {
  return with_automaton(*automaton, [&](auto lm) -> int64_t {
    GreedySearch search(lm, *frames, num_automata, rule);
    for (int64_t row = first; row < last; ++row) {
      const int64_t of_row = row * num_automata;
      int32_t* states = found->states + of_row;
      if (!lm.has_all(states, num_automata)) return row;
      found->bad_frames[row] = search.run(row, weights + of_row, stay_costs[row], found->labels + row * width, found->acoustic_scores[row],
                                          found->lm_scores + of_row, states, found->before + 2 * row);
    }
    return -1;
  });
}
