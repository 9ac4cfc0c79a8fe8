// One step of attention decoding with a language model (defined in hf_ngpulm/search/attention_step). The language model's
// scores are added to the model's scores in place, with no more extra memory than a row's arcs take. This file also finds the
// best of many scores.
#include "automaton.hpp"
#include "loops.hpp"
#include "vectors.hpp"

// See hf_ngpulm/search/attention_step/cpu.py.
struct NgpulmRoles {
  const int8_t* roles;
  const int32_t *unscored, *ends;
  int64_t classes, num_unscored, num_ends;
  float log_guess;
  uint8_t holds;
};
struct NgpulmFusedRows {
  const int32_t *starts, *roots;
  const float* weights;
  int64_t context_length;
};

using namespace ngpulm;

namespace {

enum Role : int8_t { UNSCORED, TEXT, END, KINDS, START, HOLD = 8 };  // KINDS are the bits of the first three

struct LogSum {
  float highest, log_sum;
};

// The log of the sum of the exponentials of some numbers. Each block of numbers is read once and has its own highest number.
// Blocks are added in double precision, so the error stays below 1e-6 for any vocabulary.
LogSum log_sum_of(const float* numbers, int64_t size) {
  constexpr int64_t BLOCK = 2048;
  float highest = NEG_INF;
  double total = 0.0;
  for (int64_t at = 0; at < size; at += BLOCK) {
    const int64_t length = std::min(BLOCK, size - at);
    const float high = highest_of(numbers + at, length);
    if (high == NEG_INF) continue;
    if (high == -NEG_INF) return {high, high};
    if (high > highest) {
      total *= std::exp(double(highest) - high);
      highest = high;
    }
    total += sum_of_exp(numbers + at, length, high) * std::exp(double(high) - highest);
  }
  return {highest, highest == NEG_INF ? NEG_INF : float(highest + std::log(total))};
}

int8_t role_of(const NgpulmRoles& roles, int64_t token) {
  return token >= 0 && token < roles.classes ? roles.roles[token] : int8_t(UNSCORED);
}

bool is_text(int8_t role) { return (role & KINDS) == TEXT; }

template <class Token>
class Fuser {
 public:
  Fuser(const Automaton<Token>& lm, const NgpulmRoles& roles, const NgpulmFusedRows& rows, bool shared)
      : lm(lm), roles(roles), rows(rows), shared(shared), unscored_before(roles.num_unscored), ends_before(roles.num_ends) {}

  // Return the state after a row's tokens, starting from `state` before them. Only the last tokens of the transcript matter.
  // Returns -1 if the row has no LM.
  int32_t state_after(int64_t row, int32_t state, const int64_t* tokens, int64_t length) const {
    if (!length) return state;
    int64_t begin = length, seen = 0;
    int met = 0;
    for (int64_t at = length; at > 0 && !met && (seen < rows.context_length || roles.holds);) {
      const int8_t role = role_of(roles, tokens[--at]);
      met = role & (START | HOLD);
      if (role == TEXT && seen < rows.context_length) {
        ++seen;
        begin = at;
      }
    }
    if (met & HOLD) return -1;
    // A context of full length doesn't depend on earlier tokens; a shorter context depends on the start of the sentence.
    if (seen == rows.context_length) state = rows.roots[row];
    for (int64_t at = begin; at < length; ++at)
      if (is_text(role_of(roles, tokens[at]))) state = lm.step(state, int32_t(tokens[at])).state;
    return state;
  }

  // Add the LM's scores in a state to the scores of a row.
  void fuse(int64_t row, int32_t state, float* x) {
    const float weight = rows.weights[row];
    const float final = lm.step(state, lm.vocab_size, lm.vocab_size + 1).score;
    // The LM doesn't score the end of an empty transcript.
    const bool ends_apart = shared && state == rows.starts[row];
    gather(roles.ends, ends_before, x);
    const float end = shared ? log_sum_of(ends_before.data(), roles.num_ends).log_sum : NEG_INF;
    gather(roles.unscored, unscored_before, x);
    // While the LM's scores are added, all other classes of the row are -inf.
    const auto set_apart = [&] {
      fill(roles.unscored, roles.num_unscored, x);
      if (ends_apart) fill(roles.ends, roles.num_ends, x);
    };
    set_apart();
    const LogSum before = shared ? log_sum_of(x, roles.classes) : LogSum{NEG_INF, NEG_INF};
    // A sum is at least as large as its largest term. So for most rows the highest scores already show that the end has less
    // than half of the probability, and no sum is computed.
    bool is_sure =
        end > NEG_INF && end > std::max({before.highest, highest_in(unscored_before), highest_in(ends_before)}) - LOG_2;
    if (is_sure) {
      put_back(roles.unscored, unscored_before, 0.f, x);
      if (ends_apart) put_back(roles.ends, ends_before, 0.f, x);
      is_sure = end > log_sum_of(x, roles.classes).log_sum - LOG_2;
      if (is_sure) kept.assign(x, x + roles.classes);
      set_apart();
    }
    add_scores(weight, state, x);
    for (int64_t i = 0; i < roles.num_ends; ++i) x[roles.ends[i]] = ends_apart ? NEG_INF : ends_before[i] + weight * final;

    const float of_others = share_out(before, std::fabs(weight) * roles.log_guess, x);
    put_back(roles.unscored, unscored_before, of_others, x);
    if (ends_apart) put_back(roles.ends, ends_before, of_others, x);
    if (!is_sure) return;
    gather(roles.ends, ends_before, x);
    if (log_sum_of(ends_before.data(), roles.num_ends).log_sum < end) std::copy(kept.begin(), kept.end(), x);
  }

 private:
  static constexpr float LOG_2 = 0.693147180559945309f;
  const Automaton<Token>& lm;
  const NgpulmRoles& roles;
  const NgpulmFusedRows& rows;
  const bool shared;
  Floats unscored_before, ends_before;
  Floats arcs_before, kept;
  std::vector<int32_t> chain;  // room for a backoff chain

  static void gather(const int32_t* classes, Floats& numbers, const float* x) {
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = x[classes[i]];
  }

  static void fill(const int32_t* classes, int64_t size, float* x) {
    for (int64_t i = 0; i < size; ++i) x[classes[i]] = NEG_INF;
  }

  static void put_back(const int32_t* classes, const Floats& numbers, float more, float* x) {
    for (size_t i = 0; i < numbers.size(); ++i) x[classes[i]] = numbers[i] + more;
  }

  static float highest_in(const Floats& numbers) { return highest_of(numbers.data(), int64_t(numbers.size())); }

  // The root's scores are added to all tokens at once. Tokens with arcs in longer contexts are then set from their earlier
  // scores.
  void add_scores(float weight, int32_t state, float* x) {
    chain.clear();
    float score = 0.f;
    const float* of_root = nullptr;  // where the root has every token
    lm.finish(state);
    for (;;) {
      const int32_t low = lm.arc_offsets[state];
      if (lm.is_root(state) && lm.is_dense(low, lm.arc_offsets[state + 1])) {
        of_root = lm.arc_weights + low;
        break;
      }
      chain.push_back(state);
      score += lm.backoff_weights[state];
      if (lm.is_root(state)) break;
      state = lm.backoff_states[state];
    }
    keep_arcs(x);
    const int32_t vocab_size = lm.vocab_size;
    if (of_root)
      for (int32_t token = 0; token < vocab_size; ++token) x[token] += weight * (score + of_root[token]);
    else
      for (int32_t token = 0; token < vocab_size; ++token) x[token] += weight * score;
    set_arcs(weight, x);
  }

  // Call `run` with each arc of the chain and the sum of backoff weights up to the arc's context. Arcs of shorter contexts
  // come first.
  template <class Run>
  void each_arc(Run&& run) const {
    for (size_t level = chain.size(); level-- > 0;) {
      float score = 0.f;
      for (size_t longer = 0; longer < level; ++longer) score += lm.backoff_weights[chain[longer]];
      const int32_t high = lm.arc_offsets[chain[level] + 1];
      for (int32_t arc = lm.arc_offsets[chain[level]]; arc < high; ++arc)
        if (const int32_t token = lm.arc_tokens[arc]; token < lm.vocab_size) run(arc, token, score);
    }
  }

  void keep_arcs(const float* x) {
    arcs_before.clear();
    each_arc([&](int32_t, int32_t token, float) { arcs_before.push_back(x[token]); });
  }

  void set_arcs(float weight, float* x) const {
    const float* before = arcs_before.data();
    each_arc([&](int32_t arc, int32_t token, float score) { x[token] = *before++ + weight * (score + lm.arc_weights[arc]); });
  }

  // Raise the scored classes until they have their total probability `before` again, but by at most `most`. Returns the
  // number, 0 or less, to add to the unscored classes.
  float share_out(LogSum before, float most, float* x) const {
    if (!(before.log_sum > NEG_INF)) return 0.f;
    const LogSum after = log_sum_of(x, roles.classes);
    const float lost = before.log_sum - after.log_sum;
    if (!(std::fabs(lost) < std::numeric_limits<float>::infinity())) return 0.f;
    const float gained = std::min(lost, most);
    for (int64_t i = 0; i < roles.classes; ++i) x[i] += gained;
    return std::min({0.f, gained - lost, after.highest + gained - before.highest});
  }
};

void find_best(const float* x, int64_t classes, int64_t count, float* best, int64_t* where) {
  constexpr int64_t BLOCK = 128;  // few blocks have a score among the best
  for (int64_t place = 0; place < count; ++place) best[place] = NEG_INF, where[place] = place;
  for (int64_t block = 0; block < classes; block += BLOCK) {
    const int64_t size = std::min(BLOCK, classes - block);
    if (size == BLOCK) {
      const float limit = best[count - 1], *part = x + block;
      int32_t above = 0;
      for (int64_t i = 0; i < BLOCK; ++i) above += part[i] > limit;
      if (!above) continue;
    }
    for (int64_t i = block; i < block + size; ++i) {
      if (!(x[i] > best[count - 1])) continue;
      int64_t place = count - 1;
      for (; place > 0 && x[i] > best[place - 1]; --place) best[place] = best[place - 1], where[place] = where[place - 1];
      best[place] = x[i];
      where[place] = i;
    }
  }
}

}  // namespace

// `scores` are [B, classes], `input_ids` [B, length]. If `states` is given, these are the states before the tokens. If `ends`
// is given, loops are ended first, and rows in a loop aren't fused. Returns -1, or the first row with a state that doesn't
// exist or an end that isn't a class.
NGPULM_EXPORT int64_t ngpulm_fuse(int64_t first, int64_t last, const NgpulmAutomaton* automaton, const NgpulmRoles* roles,
                                  const NgpulmFusedRows* rows, const NgpulmEnds* ends, const int32_t* states,
                                  const int64_t* input_ids, int64_t length, int32_t shared, float* scores) {
  return with_automaton(*automaton, [&](auto lm) -> int64_t {
    if (ends && !are_classes(*ends)) return first;
    Fuser fuser(lm, *roles, *rows, shared);
    for (int64_t row = first; row < last; ++row) {
      if (states[row] < 0 || rows->weights[row] == 0.f) continue;
      const int64_t* tokens = input_ids + row * length;
      float* x = scores + row * roles->classes;
      if (ends && end_loop(*ends, tokens, length, true, x)) continue;
      if (!lm.has(states[row]) || (length && !lm.has(rows->roots[row]))) return row;
      const int32_t state = fuser.state_after(row, states[row], tokens, length);
      if (state >= 0) fuser.fuse(row, state, x);
    }
    return -1;
  });
}

// Compute the states after one more token of each row. Returns -1, or the first row with a state that doesn't exist.
NGPULM_EXPORT int64_t ngpulm_follow(int64_t first, int64_t last, const NgpulmAutomaton* automaton, const NgpulmRoles* roles,
                                    const int32_t* states, const int64_t* tokens, const int32_t* starts, int32_t* found) {
  return with_automaton(*automaton, [&](auto lm) -> int64_t {
    for (int64_t row = first; row < last; ++row) {
      const int8_t role = role_of(*roles, tokens[row]);
      int32_t state = states[row];
      if (role & START)
        state = starts[row];
      else if (role & HOLD)
        state = -1;
      else if (is_text(role) && state >= 0) {
        if (!lm.has(state)) return row;
        state = lm.step(state, int32_t(tokens[row])).state;
      }
      found[row] = state;
    }
    return -1;
  });
}

// Find the `count` best of each row of `classes` scores, the best first, and their indices. NaN is skipped; missing scores
// are -inf.
NGPULM_EXPORT int64_t ngpulm_best_tokens(int64_t first, int64_t last, const float* scores, int64_t classes, int64_t count,
                                         float* values, int64_t* tokens) {
  for (int64_t row = first; row < last; ++row)
    find_best(scores + row * classes, classes, count, values + row * count, tokens + row * count);
  return -1;
}
