// A language model over words, composed with its lexicon as far as searches have reached. hf_ngpulm/lexicon/lazy_states.py
// describes when states are made and composed.
#pragma once
#include "composition.hpp"

// See hf_ngpulm/lexicon/lazy_states.py.
struct NgpulmLazyAutomaton {
  int32_t *read, *own_state;
  int64_t* word_offsets;
  int32_t* forms;
  double* log_probs;
  int32_t* targets;
  double *probs, *lower_probs;
  int32_t *of_lm, *nodes;
  double* mass;
  int64_t* first_word_arc;
  int32_t *lower, *composed;
  uint8_t* unfinished;
  int32_t* arc_offsets;
  void* arc_tokens;
  float* arc_weights;
  int32_t *arc_targets, *backoff_states;
  float* backoff_weights;
  int64_t *counts, room_for_read, room_for_forms, room_for_states, room_for_arcs;
  int32_t token_bytes, vocab_size, delimiter, start, longest_chain, begin;
  double unknown_token, word_bonus, delimiter_bonus;
};

// See hf_ngpulm/lexicon/lazy_search.py.
struct NgpulmLazySource {
  const NgpulmLazyAutomaton* made;
  const NgpulmAutomaton* lm;
  const NgpulmWords* words;
  const NgpulmSpellingTrie* trie;
  const int64_t *own, *firsts;
  int64_t *copied, num_parts, room_for_states, room_for_arcs, arc_shift;
};

namespace ngpulm {

// Results of composing: it is done; or there may be no room for the next state and its arcs, or for the words of a state.
constexpr int64_t DONE = 0, NO_ROOM = 1, NO_ROOM_FOR_WORDS = 2;
// Indices into `counts`.
enum { STATES, ARCS, READ, FORMS, COMPOSED };

// `WordToken` is the token type of the word-level model, `Token` that of the composed automaton. State `k` of the composed
// automaton has the number 2 k. So its arcs may be anywhere: from arc_offsets[2 k] to arc_offsets[2 k + 1].
template <class WordToken, class Token>
class LazyAutomaton {
 public:
  LazyAutomaton(const NgpulmLazyAutomaton& made, const Automaton<WordToken>& lm, const NgpulmWords& words,
                const NgpulmSpellingTrie& trie)
      : g(made), reader(lm, words), lm(reader.lm), trie(trie), tokens(static_cast<Token*>(made.arc_tokens)) {}

  bool has(int32_t number) const { return number >= 0 && number < 2 * g.counts[STATES] && number % 2 == 0; }
  // If another thread sees that a state is finished, it also sees all data on which the state's scores depend.
  bool is_unfinished(int32_t number) const { return __atomic_load_n(g.unfinished + number, __ATOMIC_ACQUIRE) != 0; }

  // Return the automaton composed so far, for queries.
  Automaton<Token> automaton() const {
    return Automaton<Token>({g.arc_offsets, g.arc_tokens, g.arc_weights, g.arc_targets, g.backoff_states, g.backoff_weights,
                             int32_t(2 * g.counts[STATES]), g.vocab_size, g.token_bytes, nullptr, nullptr});
  }

  // Compose the state with this number, and all states on which its scores depend. Also compose the states that its arcs lead
  // to within a word, up to `ahead` arcs away. Returns DONE, or the reason why there is no room; states composed until then
  // stay.
  int64_t enter(int32_t number, int64_t ahead) {
    if (!is_unfinished(number)) return DONE;
    if (const int64_t why = compose(number >> 1); why != DONE) return why;
    if (ahead)
      for (int32_t arc = g.arc_offsets[number]; arc < g.arc_offsets[number + 1]; ++arc)
        if (const int32_t target = g.arc_targets[arc]; is_unfinished(target) && g.nodes[target >> 1] > 0)
          if (const int64_t why = enter(target, ahead - 1); why != DONE) return why;
    return DONE;
  }

 private:
  int64_t compose(int32_t wanted) {
    if (!read(0)) return NO_ROOM_FOR_WORDS;  // all other states' forms refer to the root's
    waiting.assign(1, wanted);
    while (!waiting.empty()) {
      const int32_t state = waiting.back();
      if (!g.unfinished[2 * state]) {
        waiting.pop_back();
        continue;
      }
      const int32_t of_lm = g.of_lm[state], node = g.nodes[state];
      // Each arc may need a new state of the empty prefix, and new states of its backoff chain. The LM has no more states
      // than that.
      const int64_t room = trie.child_offsets[node + 1] - trie.child_offsets[node] + 3;
      const int64_t behind = std::min<int64_t>(g.longest_chain * room, lm.num_states);
      if (g.counts[STATES] + room + behind > g.room_for_states || g.counts[ARCS] + room > g.room_for_arcs) return NO_ROOM;
      int32_t next_word = -1;
      if (of_lm == 0) {  // has arcs, and backs off to the next word
        next_word = g.backoff_states[2 * state] >> 1;
      } else {
        if (!read(of_lm)) return NO_ROOM_FOR_WORDS;
        if (node == 0) g.first_word_arc[state] = g.word_offsets[g.read[of_lm] - 1];
        if (g.unfinished[2 * g.lower[state]]) {
          waiting.push_back(g.lower[state]);
          continue;
        }
        if (node != 0) {
          const int64_t first = g.first_word_arc[state];
          const int32_t form = g.forms[first];
          if (trie.path_offsets[form] + trie.depths[node] == trie.path_offsets[form + 1])
            next_word = own_state(g.targets[first]);
        }
      }
      if (next_word >= 0 && g.unfinished[2 * next_word]) {
        waiting.push_back(next_word);
        continue;
      }
      if (of_lm != 0) {
        g.arc_offsets[2 * state] = int32_t(g.counts[ARCS]);
        if (next_word >= 0)
          compose_word(state);
        else
          compose_words(state);
        g.arc_offsets[2 * state + 1] = int32_t(g.counts[ARCS]);
      }
      __atomic_store_n(g.unfinished + 2 * state, uint8_t(0), __ATOMIC_RELEASE);
      g.composed[g.counts[COMPOSED]++] = state;
      waiting.pop_back();
    }
    return DONE;
  }

  // Read the forms of a state of the LM and of its backoff chain; return false if there is no room for them.
  bool read(int32_t of_lm) {
    while (!g.read[of_lm]) {
      int32_t state = of_lm;
      while (!lm.is_root(state) && !g.read[lm.backoff_states[state]]) state = lm.backoff_states[state];
      const std::vector<FormArc>& arcs = reader.read(state);
      const int64_t number = g.counts[READ], first = g.counts[FORMS];
      if (number + 2 > g.room_for_read || first + int64_t(arcs.size()) > g.room_for_forms) return false;
      const int32_t below = lm.backoff_states[state];
      int64_t at = 0, below_end = 0;
      if (below != 0) at = g.word_offsets[g.read[below] - 1], below_end = g.word_offsets[g.read[below]];
      for (size_t i = 0; i < arcs.size(); ++i) {
        const int32_t form = arcs[i].form;
        g.forms[first + i] = form;
        g.log_probs[first + i] = arcs[i].log_prob;
        g.targets[first + i] = arcs[i].target;
        g.probs[first + i] = std::exp(arcs[i].log_prob);
        if (state == 0) {
          g.lower_probs[first + i] = 0;
        } else if (below == 0) {
          g.lower_probs[first + i] = g.probs[form];
        } else {
          at = std::lower_bound(g.forms + at, g.forms + below_end, form) - g.forms;
          const bool is_there = at < below_end && g.forms[at] == form;
          g.lower_probs[first + i] = is_there ? g.probs[at] : std::exp(score_form(below, form).weight);
        }
      }
      g.word_offsets[number + 1] = g.counts[FORMS] = first + int64_t(arcs.size());
      g.read[state] = int32_t(g.counts[READ] = number + 1);
    }
    return true;
  }

  // Return the state of the empty prefix under a state of the LM. If there is none, make it and the states of its backoff
  // chain.
  int32_t own_state(int32_t of_lm) {
    while (!g.own_state[of_lm]) {
      int32_t state = of_lm;
      while (!g.own_state[lm.backoff_states[state]]) state = lm.backoff_states[state];
      const int32_t below = g.own_state[lm.backoff_states[state]] - 1;
      const int32_t made = add_state(state, 0, 0, -1, below);
      g.backoff_states[2 * made] = 2 * below;
      g.backoff_weights[2 * made] = lm.backoff_weights[state];
      g.own_state[state] = made + 1;
    }
    return g.own_state[of_lm] - 1;
  }

  int32_t add_state(int32_t of_lm, int32_t node, double mass, int64_t first_word_arc, int32_t lower) {
    const int64_t made = g.counts[STATES]++;
    g.of_lm[made] = of_lm;
    g.nodes[made] = node;
    g.mass[made] = mass;
    g.first_word_arc[made] = first_word_arc;
    g.lower[made] = lower;
    g.unfinished[2 * made] = 1;
    return int32_t(made);
  }

  struct Found {
    double weight;
    int64_t at;
  };

  // Find the child of a node under the first state of the LM's backoff chain that has it. Adds the backoff weights up to
  // there to `weight`.
  Found find_lower(double weight, int32_t state, int32_t token) const {
    int32_t of_lm = lm.backoff_states[g.of_lm[state]];
    const auto back_off_to = [&](int32_t target) {
      for (; of_lm != g.of_lm[target]; of_lm = lm.backoff_states[of_lm]) weight += double(lm.backoff_weights[of_lm]);
    };
    for (state = g.lower[state];; state = g.lower[state]) {
      back_off_to(state);
      const int32_t end = g.arc_offsets[2 * state + 1];
      const int64_t at = std::lower_bound(tokens + g.arc_offsets[2 * state], tokens + end, Token(token)) - tokens;
      if (at < end && tokens[at] == token) {
        const int32_t found = g.arc_targets[at] >> 1;
        back_off_to(found);
        return {weight, found};
      }
    }
  }

  // Return log p(form | state of the LM), and its index. All states of the backoff chain must have been read.
  Found score_form(int32_t of_lm, int32_t form) const {
    double score = 0;
    for (; of_lm != 0; of_lm = lm.backoff_states[of_lm]) {
      const int64_t number = g.read[of_lm] - 1;
      const int64_t end = g.word_offsets[number + 1];
      const int64_t at = std::lower_bound(g.forms + g.word_offsets[number], g.forms + end, form) - g.forms;
      if (at < end && g.forms[at] == form) return {score + g.log_probs[at], at};
      score += double(lm.backoff_weights[of_lm]);
    }
    return {score + g.log_probs[form], form};
  }

  void write(int32_t token, double weight, int32_t target) {
    const int64_t at = g.counts[ARCS]++;
    tokens[at] = Token(token);
    g.arc_weights[at] = float(weight);
    g.arc_targets[at] = 2 * target;
  }

  // Make the state of a child node. The forms through it are `first .. end - 1`.
  int32_t add_child(int32_t state, int32_t token, int32_t node, int64_t first, int64_t end) {
    const int32_t of_lm = g.of_lm[state];
    double own = 0, below = 0;
    for (int64_t arc = first; arc < end; ++arc) own += g.probs[arc], below += g.lower_probs[arc];
    const Found lower = find_lower(0, state, token);
    const double backoff = lm.backoff_weights[of_lm];
    const double mass = log_mass(own, below, lower.weight + g.mass[lower.at], bounded_exp(backoff));
    const int32_t made = add_state(of_lm, node, mass, first, int32_t(lower.at));
    g.backoff_states[2 * made] = 2 * int32_t(lower.at);
    g.backoff_weights[2 * made] = float(lower.weight + backoff + g.mass[lower.at] - mass);
    return made;
  }

  // Return the end of a state's forms that go through a node; `arc` is one of these forms.
  int64_t end_of_node(int32_t node, int64_t arc, int64_t end) const {
    while (arc < end && g.forms[arc] < trie.end_forms[node]) ++arc;
    return arc;
  }

  // Write the arcs of the state of a prefix that isn't a word, or of the empty prefix.
  void compose_words(int32_t state) {
    const int32_t of_lm = g.of_lm[state], node = g.nodes[state], depth = trie.depths[node];
    const int64_t end = g.word_offsets[g.read[of_lm]], first_arc = g.counts[ARCS];
    const double taken = g.mass[state];
    const bool is_start = node == 0;
    bool looped = g.delimiter < 0 || !is_start, has_end = false;
    double at_end = 0;
    for (int64_t arc = g.first_word_arc[state]; arc < end && g.forms[arc] < trie.end_forms[node];) {
      const int64_t at = trie.path_offsets[g.forms[arc]] + depth;
      const int32_t token = trie.path_tokens[at], child = trie.path_nodes[at];
      if (!looped && token > g.delimiter) {
        looped = true;
        write(g.delimiter, g.unknown_token, state);
      }
      if (child < 0) {
        write(token, g.log_probs[arc] - taken, own_state(g.targets[arc]));
        if (token == g.delimiter) {
          has_end = true;
          at_end = g.log_probs[arc] + reader.score_end(g.targets[arc]);
        }
        ++arc;
        continue;
      }
      const int64_t first = arc;
      arc = end_of_node(child, arc, end);
      const int32_t made = add_child(state, token, child, first, arc);
      write(token, g.mass[made] - taken, made);
    }
    if (!looped) write(g.delimiter, g.unknown_token, state);
    if (is_start) {
      if (reader.has_end(of_lm)) {
        has_end = true;
        at_end = reader.end_weight(of_lm);
      }
      // See hf_ngpulm/lexicon/weights.py.
      const float delimiter_bonus = of_lm == g.begin ? 0.f : float(g.delimiter_bonus);
      for (int64_t at = first_arc; at < g.counts[ARCS]; ++at)
        g.arc_weights[at] += tokens[at] == g.delimiter ? delimiter_bonus : float(g.word_bonus);
    }
    if (has_end) write(g.vocab_size, at_end - taken, g.own_state[g.start] - 1);
  }

  // Write the arcs of the state of a word with which longer words begin, and its backoff to the beginning of the next word.
  void compose_word(int32_t state) {
    const int32_t of_lm = g.of_lm[state], node = g.nodes[state], depth = trie.depths[node];
    const int64_t word_arc = g.first_word_arc[state], end = g.word_offsets[g.read[of_lm]];
    const double taken = g.mass[state];
    int64_t arc = word_arc + 1;
    for (int64_t child = trie.child_offsets[node]; child < trie.child_offsets[node + 1]; ++child) {
      const int32_t token = trie.child_tokens[child], below = trie.child_nodes[child];
      const bool is_own = arc < end && g.forms[arc] < trie.end_forms[node] &&
                          trie.path_tokens[trie.path_offsets[g.forms[arc]] + depth] == token;
      if (below < 0) {
        const Found found = score_form(of_lm, trie.child_forms[child]);
        write(token, found.weight - taken, own_state(g.targets[found.at]));
        arc += is_own;
      } else if (is_own) {
        const int64_t first = arc;
        arc = end_of_node(below, arc, end);
        const int32_t made = add_child(state, token, below, first, arc);
        write(token, g.mass[made] - taken, made);
      } else {
        const Found lower = find_lower(lm.backoff_weights[of_lm], state, token);
        write(token, lower.weight + g.mass[lower.at] - taken, int32_t(lower.at));
      }
    }
    g.backoff_states[2 * state] = 2 * own_state(g.targets[word_arc]);
    g.backoff_weights[2 * state] = float(g.log_probs[word_arc] - taken);
  }

  const NgpulmLazyAutomaton& g;
  FormReader<WordToken> reader;
  const Automaton<WordToken>& lm;
  const NgpulmSpellingTrie& trie;
  Token* const tokens;
  std::vector<int32_t> waiting;  // stack of states to compose, each needed by the state before it
};

// Call `run` with the automaton in its types of tokens.
template <class Run>
int64_t with_lazy_automaton(const NgpulmLazyAutomaton& made, const NgpulmAutomaton& lm, const NgpulmWords& words,
                            const NgpulmSpellingTrie& trie, Run&& run) {
  return with_automaton(lm, [&](auto over_words) -> int64_t {
    using WordToken = std::remove_const_t<std::remove_pointer_t<decltype(over_words.arc_tokens)>>;
    if (made.token_bytes == 2) return run(LazyAutomaton<WordToken, int16_t>(made, over_words, words, trie));
    return run(LazyAutomaton<WordToken, int32_t>(made, over_words, words, trie));
  });
}

}  // namespace ngpulm
