// The n-gram automaton in compressed sparse rows, and the queries that all searches use. hf_ngpulm/automaton/tensors.py
// describes the arrays; hf_ngpulm/automaton/reference.py is the definition.
#pragma once
#include <functional>
#include <memory>

#include "core.hpp"

// How to compose states during a search. See hf_ngpulm/lexicon/lazy_search.py.
struct NgpulmComposing {
  const int64_t* sources;
  uint8_t* unfinished;
  int32_t* is_busy;
  int64_t num_sources, finish;
};

// The deferred checks of an automaton that is mapped from an untrusted file. See hf_ngpulm/automaton/checks.py.
struct NgpulmChecks {
  uint8_t* checked;
  int64_t num_arcs;
  int32_t vocab_size, longest;
};

// See hf_ngpulm/automaton/cpu.py.
struct NgpulmAutomaton {
  const int32_t* arc_offsets;
  const void* arc_tokens;
  const float* arc_weights;
  const int32_t *arc_targets, *backoff_states;
  const float* backoff_weights;
  int32_t num_states, vocab_size, token_bytes;
  const NgpulmComposing* composing;
  const NgpulmChecks* checks;
};

namespace ngpulm {

struct Step {
  float score;
  int32_t state;
};

// Composes the states of lazy automata when a search enters them. Each thread has its own composer.
class Composer {
 public:
  virtual ~Composer() = default;
  // Compose a state and all states that its scores depend on, unless they are composed.
  virtual void finish(int32_t state) = 0;
};
// `load` updates a view of the automaton; it is called at once, and whenever the arrays have been replaced by larger ones.
std::unique_ptr<Composer> make_composer(const NgpulmAutomaton& automaton, std::function<void()> load);

// A view of an automaton. `Token` is the type of `arc_tokens`: int16_t or int32_t.
template <class Token>
struct Automaton {
  const int32_t* arc_offsets;     // [S + 1]
  const Token* arc_tokens;        // [A], ascending within a state
  const float* arc_weights;       // [A]
  const int32_t* arc_targets;     // [A]
  const int32_t* backoff_states;  // [S]
  const float* backoff_weights;   // [S]
  int32_t num_states, vocab_size;
  Composer* composer = nullptr;  // set for a lazy automaton
  const NgpulmChecks* checks = nullptr;  // set for an automaton with deferred checks

  explicit Automaton(const NgpulmAutomaton& a) { load(a); }
  void load(const NgpulmAutomaton& a) {
    arc_offsets = a.arc_offsets;
    arc_tokens = static_cast<const Token*>(a.arc_tokens);
    arc_weights = a.arc_weights;
    arc_targets = a.arc_targets;
    backoff_states = a.backoff_states;
    backoff_weights = a.backoff_weights;
    num_states = a.num_states;
    vocab_size = a.vocab_size;
    checks = a.checks;
  }

  bool has(int32_t state) const { return state >= 0 && state < num_states; }
  bool has_all(const int32_t* states, int64_t count) const {
    return std::all_of(states, states + count, [this](int32_t state) { return has(state); });
  }
  // Compose a state of a lazy automaton, or do the deferred checks of a state. All queries call this before they read arcs.
  void finish(int32_t state) const {
    if (composer) composer->finish(state);
    if (checks && !__atomic_load_n(checks->checked + state, __ATOMIC_ACQUIRE)) check(state);
  }

  // Check the values of a state and of its backoff chain that queries read, as `validate` does for all states
  // (hf_ngpulm/automaton/automaton.py). The state must exist: it is a start, the target of a checked arc, or `has` returned
  // true. Throws `Broken`.
  void check(int32_t state) const {
    const auto require = [](bool condition) {
      if (!condition) throw Broken();
    };
    for (int32_t at = state, steps = 0;; ++steps) {
      const int32_t low = arc_offsets[at], high = arc_offsets[at + 1], backoff = backoff_states[at];
      require(0 <= low && low <= high && high <= checks->num_arcs && std::isfinite(backoff_weights[at]));
      for (int32_t arc = low; arc < high; ++arc) {
        const int32_t token = arc_tokens[arc], least = arc > low ? arc_tokens[arc - 1] + 1 : 0;
        require(least <= token && token <= checks->vocab_size && std::isfinite(arc_weights[arc]) && has(arc_targets[arc]));
      }
      if (backoff == at) break;
      require(0 <= backoff && backoff < at && steps < checks->longest);
      at = backoff;
    }
    __atomic_store_n(checks->checked + state, 1, __ATOMIC_RELEASE);
  }
  bool is_root(int32_t state) const { return backoff_states[state] == state; }

  // Whether a root has an arc for every token, with the token as its index.
  bool is_dense(int32_t low, int32_t high) const { return is_dense(low, high, vocab_size); }
  bool is_dense(int32_t low, int32_t high, int32_t limit) const {
    return high - low >= limit && arc_tokens[low + limit - 1] == limit - 1;
  }

  // Return the index of the arc for a token among the arcs `low .. high - 1` of a state, or -1 if there is none.
  int32_t find_arc(int32_t low, int32_t high, int32_t token) const {
    const int32_t end = high;
    while (low < high) {
      const int32_t middle = int32_t((uint32_t(low) + uint32_t(high)) >> 1);
      if (arc_tokens[middle] < token)
        low = middle + 1;
      else
        high = middle;
    }
    return low < end && arc_tokens[low] == token ? low : -1;
  }

  // Return the score of a token and the next state. A token outside 0 .. limit - 1 scores 0 and keeps the state. `limit` is
  // the size of the vocabulary, or one more to allow </s>.
  Step step(int32_t state, int32_t token) const { return step(state, token, vocab_size); }
  Step step(int32_t state, int32_t token, int32_t limit) const {
    float score = 0.f;
    if (token < 0 || token >= limit) return {score, state};
    finish(state);
    for (;;) {
      const int32_t low = arc_offsets[state], high = arc_offsets[state + 1], backoff = backoff_states[state];
      // A root that has every token needs no search.
      const int32_t arc = backoff == state && is_dense(low, high, limit) ? low + token : find_arc(low, high, token);
      if (arc >= 0) return {score + arc_weights[arc], arc_targets[arc]};
      score += backoff_weights[state];
      if (backoff == state) return {score, state};
      state = backoff;
    }
  }

  // Write the scores of all tokens, and their next states unless `targets` is null. The scores of the root come first; longer
  // and longer contexts overwrite them. `chain` is room for a backoff chain.
  void scores(int32_t state, std::vector<int32_t>& chain, float* out, int32_t* targets = nullptr) const {
    finish(state);
    chain.clear();
    for (; !is_root(state); state = backoff_states[state]) chain.push_back(state);
    float score = 0.f;
    for (int32_t s : chain) score += backoff_weights[s];
    const int32_t low = arc_offsets[state], high = arc_offsets[state + 1];
    if (is_dense(low, high)) {
      const float* weights = arc_weights + low;
      for (int32_t token = 0; token < vocab_size; ++token) out[token] = score + weights[token];
      if (targets) std::copy_n(arc_targets + low, vocab_size, targets);
    } else {
      std::fill_n(out, vocab_size, score + backoff_weights[state]);
      if (targets) std::fill_n(targets, vocab_size, state);
      overlay(state, score, out, targets);
    }
    for (size_t level = chain.size(); level-- > 0;) {
      score = 0.f;
      for (size_t longer = 0; longer < level; ++longer) score += backoff_weights[chain[longer]];
      overlay(chain[level], score, out, targets);
    }
  }

 private:
  // Overwrite the scores of shorter contexts by the scores of a state's own arcs.
  void overlay(int32_t state, float score, float* out, int32_t* targets) const {
    const Token* tokens = arc_tokens;
    const float* weights = arc_weights;
    for (int32_t arc = arc_offsets[state], high = arc_offsets[state + 1]; arc < high; ++arc)
      if (const int32_t token = tokens[arc]; token < vocab_size) {
        out[token] = score + weights[arc];
        if (targets) targets[token] = arc_targets[arc];
      }
  }
};

// Call `run` with a view of the automaton for its type of tokens, within `guarded`. If `run` may enter states of a lazy
// automaton, it must take the view by reference, because composing may replace the arrays.
template <class Run>
int64_t with_automaton(const NgpulmAutomaton& automaton, Run&& run) noexcept {
  return guarded([&] {
    const auto run_with = [&](auto view) {
      const auto load = [&] { view.load(automaton); };
      const auto composer = automaton.composing ? make_composer(automaton, load) : nullptr;
      view.composer = composer.get();
      return run(view);
    };
    return automaton.token_bytes == 2 ? run_with(Automaton<int16_t>(automaton)) : run_with(Automaton<int32_t>(automaton));
  });
}

}  // namespace ngpulm
