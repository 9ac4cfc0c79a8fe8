// A cache of the scores that each token adds to a hypothesis in some states of the automata. The key is the states.
// Hypotheses with the same last tokens share a line. A line is also reused if a hypothesis leaves the beam and comes back, or
// if another row reaches the same states.
#pragma once
#include <memory>

#include "automaton.hpp"
#include "vectors.hpp"

namespace ngpulm {

constexpr float ROUNDING = 1e-3f;  // of sums in single precision

// List the tokens whose logits, or whose sums of logit and added score, are above a bound. Blocks are compared first, with
// vector instructions. The few tokens above the bound are then found in groups.
template <class Sum>
inline int64_t list_where_above(Sum&& sum, float bound, int64_t size, int32_t* listed) {
  constexpr int64_t BLOCK = 64, GROUP = 8;
  uint8_t are_above[BLOCK];
  int64_t count = 0, token = 0;
  for (; token + BLOCK <= size; token += BLOCK) {
    for (int64_t i = 0; i < BLOCK; ++i) are_above[i] = sum(token + i) > bound;
    for (int64_t group = 0; group < BLOCK; group += GROUP) {
      uint64_t any;
      std::memcpy(&any, are_above + group, GROUP);
      for (int64_t i = group; any && i < group + GROUP; ++i) {
        listed[count] = int32_t(token + i);
        count += are_above[i];
      }
    }
  }
  for (; token < size; ++token)
    if (sum(token) > bound) listed[count++] = int32_t(token);
  return count;
}

template <class Token>
class ScoreCache {
 public:
  ScoreCache(const Automaton<Token>& lm, int64_t num_automata, int64_t classes, int32_t blank, int64_t hypotheses)
      : lm(lm),
        num_automata(num_automata),
        classes(classes),
        candidates(std::min<int64_t>(lm.vocab_size, classes)),
        blank(blank),
        num_lines(lines_for(hypotheses, classes)),
        scores(new float[num_lines * classes]),
        highest(num_lines),
        states(num_lines * num_automata),
        weights(num_automata),
        plain(classes),
        one(lm.vocab_size) {
    forget();
  }

  // Set the weights of the automata and the scores `given` [C] that don't depend on the automata. Unless both are unchanged,
  // this empties the cache.
  void use(const float* given_weights, const float* given) {
    if (std::equal(weights.begin(), weights.end(), given_weights) && std::equal(plain.begin(), plain.end(), given)) return;
    std::copy_n(given_weights, num_automata, weights.begin());
    std::copy_n(given, classes, plain.begin());
    forget();
  }

  // Return the line of some states. The line is valid until the next call.
  int64_t line_of(const int32_t* wanted) {
    const int64_t line = place_of(wanted);
    if (holds(line, wanted)) return line;
    if (num_automata == 1) return add_with_backoffs(*wanted);
    add(line, wanted);
    return line;
  }
  const float* added(int64_t line) const { return scores.get() + line * classes; }  // [C], -inf for the blank
  float highest_of_line(int64_t line) const { return highest[line]; }               // an upper bound of these

 private:
  static constexpr float NOTHING = std::numeric_limits<float>::infinity();  // `highest` of a line that isn't in use

  const Automaton<Token>& lm;
  const int64_t num_automata, classes, candidates;  // candidates: classes that the automata score
  const int32_t blank;
  const int64_t num_lines;
  const std::unique_ptr<float[]> scores;  // no entry is read before it is written
  std::vector<float> highest;
  std::vector<int32_t> states;
  std::vector<float> weights, plain, one;
  std::vector<int32_t> chain, longer;  // states of a backoff chain

  static int64_t lines_for(int64_t hypotheses, int64_t classes) {
    constexpr int64_t KEPT_SCORES = 1 << 18;
    int64_t lines = 4;
    while (lines < 4 * hypotheses || lines * classes < KEPT_SCORES) lines *= 2;
    return lines;
  }

  void forget() { std::fill(highest.begin(), highest.end(), NOTHING); }

  int64_t place_of(const int32_t* wanted) const {
    uint64_t mixed = 0;
    for (int64_t m = 0; m < num_automata; ++m) mixed = (mixed ^ uint64_t(wanted[m])) * 0x9E3779B1u;
    return int64_t(mixed >> 15) & (num_lines - 1);
  }

  bool holds(int64_t line, const int32_t* wanted) const {
    bool is_same = highest[line] != NOTHING;
    for (int64_t m = 0; m < num_automata; ++m) is_same &= states[line * num_automata + m] == wanted[m];
    return is_same;
  }

  // With one automaton, the scores in a state differ from those in its backoff state by a constant and in a few arcs. The
  // backoff state's line is likely to be cached.
  int64_t add_with_backoffs(int32_t state) {
    longer.clear();
    int64_t line = place_of(&state);
    while (!holds(line, &state)) {
      if (lm.is_root(state)) {
        add(line, &state);
        break;
      }
      lm.finish(state);
      longer.push_back(state);
      state = lm.backoff_states[state];
      line = place_of(&state);
    }
    for (; !longer.empty(); longer.pop_back()) line = add_longer(line, longer.back());
    return line;
  }

  int64_t add_longer(int64_t shorter, int32_t state) {
    const int64_t line = place_of(&state);  // may be the same line, which does no harm
    const float shift = weights[0] * lm.backoff_weights[state];
    const float* from = added(shorter);
    float* to = scores.get() + line * classes;
    for (int64_t token = 0; token < candidates; ++token) to[token] = from[token] + shift;
    float top = highest[shorter] + shift;
    for (int64_t token = candidates; token < classes; ++token) top = std::max(top, to[token] = plain[token]);
    for (int32_t arc = lm.arc_offsets[state]; arc < lm.arc_offsets[state + 1]; ++arc)
      if (const int32_t token = lm.arc_tokens[arc]; token < candidates)
        top = std::max(top, to[token] = plain[token] + weights[0] * lm.arc_weights[arc]);
    to[blank] = NEG_INF;
    highest[line] = top;
    states[line] = state;
    return line;
  }

  void add(int64_t line, const int32_t* wanted) {
    float* to = scores.get() + line * classes;
    std::copy(plain.begin(), plain.end(), to);
    for (int64_t m = 0; m < num_automata; ++m) {
      states[line * num_automata + m] = wanted[m];
      if (weights[m] == 0.f) continue;
      lm.scores(wanted[m], chain, one.data());
      for (int64_t token = 0; token < candidates; ++token) to[token] += weights[m] * one[token];
    }
    to[blank] = NEG_INF;
    highest[line] = highest_of(to, classes);
  }
};

}  // namespace ngpulm
