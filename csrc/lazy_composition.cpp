// Compose the states that searches have entered, by following the searches' paths again. Each function returns DONE, or the
// reason why there is no room. In the second case the caller makes room and calls it again, and the function continues where
// it stopped. BAD_STATE means that a state doesn't exist or has no predecessor.
#include "lazy_composition.hpp"

#include <stdexcept>
#include <thread>

using namespace ngpulm;

constexpr int64_t BAD_STATE = 3;

namespace ngpulm {
namespace {

// Only one thread at a time composes. Most states take microseconds.
class Turn {
 public:
  explicit Turn(int32_t* is_busy) : is_busy(is_busy) {
    while (__atomic_exchange_n(is_busy, 1, __ATOMIC_ACQUIRE)) std::this_thread::yield();
  }
  ~Turn() { __atomic_store_n(is_busy, 0, __ATOMIC_RELEASE); }
  Turn(const Turn&) = delete;

 private:
  int32_t* const is_busy;
};

// A lazily composed model in a search. The search reads the model's states, or copies of them in a pool.
class Source {
 public:
  virtual ~Source() = default;
  // Compose a state by its number in the searched automaton, and copy new states to the pool, if there is one. Returns false
  // if the state is another model's, or if there is no room.
  virtual bool finish(int32_t state) = 0;
};

template <class WordToken, class Token>
class SourceOf : public Source {
 public:
  SourceOf(const NgpulmLazySource& source, const NgpulmAutomaton& automaton)
      : source(source),
        pool(automaton),
        made(*source.made),
        lazy(made, Automaton<WordToken>(*source.lm), *source.words, *source.trie) {}

  bool finish(int32_t state) override {
    if (!source.num_parts) return lazy.enter(state, 0) == DONE;
    const int32_t own = outside(state);
    return own >= 0 && lazy.enter(own, 0) == DONE && copy();
  }

 private:
  // Convert the number of a state in the pool to its number in the model, and the reverse.
  int32_t outside(int32_t state) const {
    for (int64_t part = 0; part < source.num_parts; ++part) {
      const int64_t within = state - source.firsts[part];
      const int64_t end = part + 1 < source.num_parts ? source.own[part + 1] : source.copied[0];
      if (within >= 0 && within < end - source.own[part]) return int32_t(source.own[part] + within);
    }
    return -1;
  }
  int32_t in_pool(int32_t own) const {
    int64_t part = source.num_parts - 1;
    while (own < source.own[part]) --part;
    return int32_t(source.firsts[part] + own - source.own[part]);
  }

  // The same as `InPool.update` in hf_ngpulm/lexicon/lazy_search.py, if there is room in the pool.
  bool copy() {
    const int64_t states = 2 * made.counts[STATES], arcs = made.counts[ARCS], composed = made.counts[COMPOSED];
    if (states > source.room_for_states || arcs > source.room_for_arcs) return false;
    const auto offsets = const_cast<int32_t*>(pool.arc_offsets), targets = const_cast<int32_t*>(pool.arc_targets);
    const auto backoffs = const_cast<int32_t*>(pool.backoff_states);
    const auto backoff_weights = const_cast<float*>(pool.backoff_weights), weights = const_cast<float*>(pool.arc_weights);
    const auto tokens = static_cast<Token*>(const_cast<void*>(pool.arc_tokens));
    uint8_t* unfinished = pool.composing->unfinished;
    const auto copy_state = [&](int32_t own, int32_t to) {
      offsets[to] = int32_t(std::max<int64_t>(made.arc_offsets[own] + source.arc_shift, 0));
      backoffs[to] = in_pool(made.backoff_states[own]);
      backoff_weights[to] = made.backoff_weights[own];
    };
    for (int64_t own = source.copied[0]; own < states; ++own) {
      const int32_t to = in_pool(int32_t(own));
      copy_state(int32_t(own), to);
      unfinished[to] = own % 2 == 0;
    }
    for (int64_t arc = source.copied[1]; arc < arcs; ++arc) {
      const int64_t to = arc + source.arc_shift;
      tokens[to] = static_cast<const Token*>(made.arc_tokens)[arc];
      weights[to] = made.arc_weights[arc];
      targets[to] = in_pool(made.arc_targets[arc]);
    }
    for (int64_t i = source.copied[2]; i < composed; ++i) {
      const int32_t own = 2 * made.composed[i], to = in_pool(own);
      if (made.arc_offsets[own] >= source.copied[1]) {  // other states, under the root, already had their arcs
        copy_state(own, to);
        offsets[to + 1] = int32_t(made.arc_offsets[own + 1] + source.arc_shift);
      }
      __atomic_store_n(unfinished + to, uint8_t(0), __ATOMIC_RELEASE);  // last, as another thread may read what is finished
    }
    source.copied[0] = states, source.copied[1] = arcs, source.copied[2] = composed;
    return true;
  }

  const NgpulmLazySource& source;
  const NgpulmAutomaton& pool;
  const NgpulmLazyAutomaton& made;
  LazyAutomaton<WordToken, Token> lazy;
};

std::unique_ptr<Source> make_source(const NgpulmLazySource& source, const NgpulmAutomaton& automaton) {
  const bool short_words = source.lm->token_bytes == 2, short_tokens = automaton.token_bytes == 2;
  if (short_words && short_tokens) return std::make_unique<SourceOf<int16_t, int16_t>>(source, automaton);
  if (short_words) return std::make_unique<SourceOf<int16_t, int32_t>>(source, automaton);
  if (short_tokens) return std::make_unique<SourceOf<int32_t, int16_t>>(source, automaton);
  return std::make_unique<SourceOf<int32_t, int32_t>>(source, automaton);
}

class ComposerOf : public Composer {
 public:
  ComposerOf(const NgpulmAutomaton& automaton, std::function<void()> load)
      : automaton(automaton), c(*automaton.composing), load(std::move(load)) {
    const Turn turn(c.is_busy);
    renew();
  }

  void finish(int32_t state) override {
    if (!__atomic_load_n(unfinished + state, __ATOMIC_ACQUIRE)) return;
    const Turn turn(c.is_busy);
    if (addresses != c.sources) renew();
    if (!unfinished[state]) return;
    for (const auto& source : sources)
      if (source->finish(state)) return;
    if (reinterpret_cast<int64_t (*)(int64_t)>(c.finish)(state) != 0) throw std::runtime_error("a state can't be composed");
    renew();
  }

 private:
  // Read the addresses of the arrays, which a call of `c.finish` in another thread may have replaced.
  void renew() {
    addresses = c.sources, unfinished = c.unfinished;
    sources.clear();
    for (int64_t i = 0; i < c.num_sources; ++i)
      sources.push_back(make_source(*reinterpret_cast<const NgpulmLazySource*>(addresses[i]), automaton));
    load();
  }

  const NgpulmAutomaton& automaton;
  const NgpulmComposing& c;
  const std::function<void()> load;
  const int64_t* addresses = nullptr;  // each call of `c.finish` puts them elsewhere
  uint8_t* unfinished = nullptr;
  std::vector<std::unique_ptr<Source>> sources;
};

}  // namespace

std::unique_ptr<Composer> make_composer(const NgpulmAutomaton& automaton, std::function<void()> load) {
  return std::make_unique<ComposerOf>(automaton, std::move(load));
}

}  // namespace ngpulm

// Mark the scores of some states in a pool as final. A thread that reads the mark also sees the states' arcs.
NGPULM_EXPORT int64_t ngpulm_lazy_finished(int64_t count, const int32_t* states, uint8_t* unfinished) {
  for (int64_t i = 0; i < count; ++i) __atomic_store_n(unfinished + states[i], uint8_t(0), __ATOMIC_RELEASE);
  return DONE;
}

// Compose some states. Numbers below 0 are states of other automata and are skipped. `is_new` becomes 1 if any state was
// composed.
NGPULM_EXPORT int64_t ngpulm_lazy_enter(const NgpulmLazyAutomaton* made, const NgpulmAutomaton* lm, const NgpulmWords* words,
                                        const NgpulmSpellingTrie* trie, const int32_t* states, int64_t num_states,
                                        uint8_t* is_new) {
  return with_lazy_automaton(*made, *lm, *words, *trie, [&](auto&& lazy) -> int64_t {
    for (int64_t i = 0; i < num_states; ++i) {
      if (states[i] < 0) continue;
      if (!lazy.has(states[i])) return BAD_STATE;
      if (!lazy.is_unfinished(states[i])) continue;
      *is_new = 1;
      if (const int64_t why = lazy.enter(states[i], 0); why != DONE) return why;
    }
    return DONE;
  });
}

// Compose the states that a search has entered, and states `ahead` of them. `now` [rows, beams] are the states before step
// `next_step` [rows] of each row. Before step -1 they are the initial states of the hypotheses; below 0 means no hypothesis.
// `links` and `labels` [rows, steps, beams] are each hypothesis's parent and new token at a step. A label below 0, or
// `not_tokens`, means no token.
NGPULM_EXPORT int64_t ngpulm_lazy_replay(const NgpulmLazyAutomaton* made, const NgpulmAutomaton* lm, const NgpulmWords* words,
                                         const NgpulmSpellingTrie* trie, int32_t* now, int64_t* next_step, const int32_t* links,
                                         const int32_t* labels, int64_t rows, int64_t steps, int64_t beams, int32_t not_tokens,
                                         int64_t ahead, uint8_t* is_new) {
  return with_lazy_automaton(*made, *lm, *words, *trie, [&](auto&& lazy) -> int64_t {
    const auto automaton = lazy.automaton();  // its arrays don't move
    std::vector<int32_t> then(beams);
    for (int64_t row = 0; row < rows; ++row, now += beams, ++next_step) {
      for (; *next_step < steps; ++*next_step) {
        const int64_t at = (row * steps + *next_step) * beams;
        for (int64_t k = 0; k < beams; ++k) {
          const int64_t from = *next_step < 0 ? k : links[at + k];
          if (from < 0 || from >= beams) return BAD_STATE;
          then[k] = now[from];
          if (then[k] < 0) continue;
          if (!lazy.has(then[k])) return BAD_STATE;
          if (*next_step >= 0) {
            const int32_t label = labels[at + k];
            if (label < 0 || label == not_tokens) continue;
            then[k] = automaton.step(then[k], label).state;
          }
          if (!lazy.is_unfinished(then[k])) continue;
          *is_new = 1;
          if (const int64_t why = lazy.enter(then[k], ahead); why != DONE) return why;
        }
        std::copy(then.begin(), then.end(), now);
      }
    }
    return DONE;
  });
}

// Compose the states along texts, from the states in which `states_after` begins. `now` [rows] are the states before token
// `position` [rows] of each text, below 0 for none. A position below 0 means that the text hasn't been read yet: `now` is
// then the state at the beginning of texts, and `roots` the state to use if the beginning is out of reach of the context.
NGPULM_EXPORT int64_t ngpulm_lazy_read(const NgpulmLazyAutomaton* made, const NgpulmAutomaton* lm, const NgpulmWords* words,
                                       const NgpulmSpellingTrie* trie, int32_t* now, int64_t* position, const int32_t* roots,
                                       const int32_t* tokens, const int32_t* lengths, int64_t rows, int64_t length,
                                       int64_t context_length, uint8_t* is_new) {
  return with_lazy_automaton(*made, *lm, *words, *trie, [&](auto&& lazy) -> int64_t {
    const auto automaton = lazy.automaton();  // its arrays don't move
    for (int64_t row = 0; row < rows; ++row, tokens += length) {
      int32_t& state = now[row];
      int64_t& at = position[row];
      if (state < 0) continue;
      if (at < 0) {
        int64_t seen = 0;
        for (at = lengths[row]; at > 0 && seen < context_length;) {
          --at;
          seen += tokens[at] >= 0 && tokens[at] < made->vocab_size;
        }
        if (seen == context_length) state = roots[row];
      }
      for (;; ++at) {
        if (!lazy.has(state)) return BAD_STATE;
        if (lazy.is_unfinished(state)) {
          *is_new = 1;
          if (const int64_t why = lazy.enter(state, 0); why != DONE) return why;
        }
        if (at >= lengths[row]) break;
        state = automaton.step(state, tokens[at]).state;
      }
    }
    return DONE;
  });
}
