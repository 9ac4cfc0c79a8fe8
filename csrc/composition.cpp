// Compose a complete language model over words with its lexicon. hf_ngpulm/lexicon/composition.py defines the result and
// explains it.
//
// A place is a prefix state, numbered without the LM's own states. Place 0 is the unknown word. Places 1 .. N - 1 are the
// trie's inner nodes under the root of the language model. The places under its other states follow, state by state. In the
// automaton the LM's own states come first, in their order, followed by the places.
#include "composition.hpp"

// See `FormLM` and the section on unknown words in hf_ngpulm/lexicon/composition.py. `ends_after` is log p(</s>) after each
// arc, and as last element after <unk>; null if it must be looked up.
struct NgpulmFormLM {
  const int64_t* offsets;
  const int32_t* forms;
  const double* log_probs;
  const int32_t* targets;
  const double *ends, *ends_after;
  const int32_t* backoff_states;
  const double* backoff_weights;
  int32_t num_states, start, unknown_target;
  double unknown, unknown_token;
};

// Word boundaries; see `Boundaries` in hf_ngpulm/lexicon/spellings.py.
struct NgpulmBoundaries {
  const uint8_t* begins_word;
  int32_t delimiter, vocab_size;
};

// Data about places that is computed before the arcs.
struct NgpulmPlaces {
  const int64_t* first_place;
  int32_t* nodes;
  double* mass;
  int32_t *word_arcs, *lower;
};

// The composed automaton.
struct NgpulmComposed {
  const int32_t* arc_offsets;
  void* arc_tokens;
  float* arc_weights;
  int32_t *arc_targets, *backoff_states;
  float* backoff_weights;
  int32_t token_bytes;
};

namespace ngpulm {
namespace {

struct FormLM : NgpulmFormLM {
  // log p(</s> | state).
  double score_end(int32_t state) const {
    double score = 0;
    for (; std::isnan(ends[state]); state = backoff_states[state]) score += backoff_weights[state];
    return score + ends[state];
  }
  // log p(</s>) after an arc that leads to a state.
  double end_after(int64_t arc, int32_t target) const { return ends_after ? ends_after[arc] : score_end(target); }
};

struct Found {
  double weight;  // sum of the backoff weights up to the state
  int64_t at;
  int32_t state;
};

// Values (forms or nodes of the trie) that each state of the language model has in ascending order. The root has all values.
struct Owned {
  const FormLM& lm;
  const int64_t* offsets;
  const int32_t* values;

  // Find a value under a state, or under the first state of its backoff chain that has the value.
  Found find(int32_t state, int32_t value, double weight = 0) const {
    for (; state != 0; state = lm.backoff_states[state]) {
      const int32_t* const end = values + offsets[state + 1];
      if (const int32_t* at = std::lower_bound(values + offsets[state], end, value); at < end && *at == value)
        return {weight, at - values, state};
      weight += lm.backoff_weights[state];
    }
    return {weight, value, 0};
  }
};

// The same for ascending values, in one walk along the state's values.
struct OwnedWalk {
  const Owned& owned;
  int32_t state;
  int64_t at, end;

  OwnedWalk(const Owned& owned, int32_t state)
      : owned(owned), state(state), at(owned.offsets[state]), end(owned.offsets[state + 1]) {}

  Found find(int32_t value) {
    if (state == 0) return {0, value, 0};
    at = gallop(owned.values, at, end, value);
    if (at < end && owned.values[at] == value) return {0, at, state};
    return owned.find(owned.lm.backoff_states[state], value, 0 + owned.lm.backoff_weights[state]);
  }
};

// Walks along the spellings of a state's words in order, and numbers the places of the inner nodes in the order of the walk.
struct PlaceWalk {
  const NgpulmSpellingTrie& trie;
  std::vector<int64_t> place_at;  // place at each depth of the path
  int64_t next = 0, first = 0, length = 0, shared = 0;
  int32_t before = -1;

  explicit PlaceWalk(const NgpulmSpellingTrie& trie) : trie(trie) {}

  void begin(const int64_t* first_place, int32_t state) {
    next = first_place[state] + (state == 0);  // place 0 is the unknown word
    before = -1;
  }
  int32_t node(int64_t depth) const { return trie.path_nodes[first + depth]; }

  void go(int32_t form) {
    first = trie.path_offsets[form];
    length = trie.path_offsets[form + 1] - first;
    shared = 0;  // nodes shared with the previous path; a leaf belongs to one path only
    if (before >= 0) {
      const int64_t other = trie.path_offsets[before], most = std::min(length, trie.path_offsets[before + 1] - other);
      while (shared < most && node(shared) >= 0 && node(shared) == trie.path_nodes[other + shared]) ++shared;
    }
    before = form;
    if (int64_t(place_at.size()) < length) place_at.resize(length);
    for (int64_t depth = shared; depth < length && node(depth) >= 0; ++depth) place_at[depth] = next++;
  }
};

// Writes the arcs of one state of the language model and of its places. Arcs ascend within a state.
template <class Token>
class ArcWriter {
 public:
  ArcWriter(const NgpulmComposed& out) : out(out), arc_tokens(static_cast<Token*>(out.arc_tokens)) {}

  // Begin with the rows of a state and of its places.
  void begin(int64_t own, int64_t first, int64_t end) {
    own_row = own, first_row = first;
    own_at = out.arc_offsets[own];
    ats.assign(out.arc_offsets + first, out.arc_offsets + end);
  }
  void write(int64_t row, int32_t token, double weight, int64_t target) {
    int32_t& at = row == own_row ? own_at : ats[row - first_row];
    if (at >= out.arc_offsets[row + 1]) {
      overflowed = row;
      return;
    }
    arc_tokens[at] = Token(token);
    out.arc_weights[at] = float(weight);
    out.arc_targets[at++] = int32_t(target);
  }
  // Return a row whose number of arcs differs from the counted number, or -1.
  int64_t broken() const {
    if (overflowed >= 0) return overflowed;
    if (own_at != out.arc_offsets[own_row + 1]) return own_row;
    for (size_t i = 0; i < ats.size(); ++i)
      if (ats[i] != out.arc_offsets[first_row + i + 1]) return first_row + int64_t(i);
    return -1;
  }

  const NgpulmComposed& out;
  Token* arc_tokens;

 private:
  int64_t own_row = 0, first_row = 0, overflowed = -1;
  int32_t own_at = 0;
  std::vector<int32_t> ats;
};

template <class Token>
class Composition {
 public:
  Composition(const FormLM& lm, const NgpulmSpellingTrie& trie, const NgpulmBoundaries& boundaries, const NgpulmPlaces& places,
              const NgpulmComposed& out)
      : lm(lm),
        trie(trie),
        boundaries(boundaries),
        places(places),
        own_forms{lm, lm.offsets, lm.forms},
        own_nodes{lm, places.first_place, places.nodes},
        out(out),
        walk(trie),
        delimiter(boundaries.delimiter) {}

  int64_t compose(int32_t state) {
    const int64_t first = places.first_place[state], end = places.first_place[state + 1];
    out.begin(state, row_of(first), row_of(end));
    ends.assign(end - first, std::numeric_limits<double>::quiet_NaN());
    if (state == 0)
      write_unknown_word();
    else
      set_backoff(state, lm.backoff_states[state], lm.backoff_weights[state]);
    write_words(state);
    if (state == 0) write_root();
    for (int64_t place = first + (state == 0); place < end; ++place) write_place(state, place, ends[place - first]);
    return out.broken();
  }

 private:
  int64_t row_of(int64_t place) const { return lm.num_states + place; }
  void set_backoff(int64_t row, int64_t state, double weight) {
    out.out.backoff_states[row] = int32_t(state);
    out.out.backoff_weights[row] = float(weight);
  }

  // The unknown word continues with any token. A token that ends a word leads to the LM's state after <unk>.
  void write_unknown_word() {
    const int64_t row = row_of(0);
    set_backoff(row, lm.unknown_target, 0);
    for (int32_t token = 0; token < boundaries.vocab_size; ++token) {
      if (delimiter < 0 && boundaries.begins_word[token]) continue;
      const bool ends = token == delimiter;
      out.write(row, token, ends ? 0 : lm.unknown_token, ends ? lm.unknown_target : row);
    }
    const int64_t num_arcs = lm.offsets[lm.num_states];
    if (delimiter >= 0) out.write(row, boundaries.vocab_size, lm.end_after(num_arcs, lm.unknown_target), lm.start);
  }

  // The root has an arc for every token.
  void write_root() {
    set_backoff(0, 0, 0);
    int64_t child = trie.child_offsets[0];
    for (int32_t token = 0; token < boundaries.vocab_size; ++token) {
      if (child < trie.child_offsets[1] && trie.child_tokens[child] == token) {
        const int32_t node = trie.child_nodes[child], form = trie.child_forms[child];
        if (node < 0)
          out.write(0, token, lm.log_probs[form], lm.targets[form]);
        else
          out.write(0, token, places.mass[node], row_of(node));
        ++child;
      } else if (token == delimiter) {
        out.write(0, token, lm.unknown_token, 0);
      } else {
        out.write(0, token, lm.unknown + lm.unknown_token, row_of(0));
      }
    }
    out.write(0, boundaries.vocab_size, lm.ends[0], lm.start);
  }

  // Write the arcs of the empty prefix, and of prefixes that aren't words, for a state's own words.
  void write_words(int32_t state) {
    walk.begin(places.first_place, state);
    bool looped = delimiter < 0 || state == 0;  // a delimiter before any word keeps the state
    const auto loop = [&] {
      out.write(state, delimiter, lm.unknown_token, state);
      looped = true;
    };
    for (int64_t arc = lm.offsets[state]; arc < lm.offsets[state + 1]; ++arc) {
      walk.go(lm.forms[arc]);
      for (int64_t depth = walk.shared; state != 0 && depth < walk.length; ++depth) {
        const int32_t token = trie.path_tokens[walk.first + depth];
        int64_t parent = state;
        double taken = 0;
        if (depth > 0) {
          const int64_t place = walk.place_at[depth - 1];
          if (places.word_arcs[place] >= 0) continue;  // written with the words of shorter contexts
          parent = row_of(place), taken = places.mass[place];
        } else if (!looped && token > delimiter) {
          loop();
        }
        if (walk.node(depth) >= 0) {
          const int64_t place = walk.place_at[depth];
          out.write(parent, token, places.mass[place] - taken, row_of(place));
        } else {
          out.write(parent, token, lm.log_probs[arc] - taken, lm.targets[arc]);
        }
      }
      if (delimiter >= 0) {  // </s> may stand in place of the delimiter
        ends[walk.place_at[walk.length - 2] - places.first_place[state]] =
            lm.log_probs[arc] + lm.end_after(arc, lm.targets[arc]);
      }
    }
    if (!looped) loop();
    if (state != 0 && !std::isnan(lm.ends[state])) out.write(state, boundaries.vocab_size, lm.ends[state], lm.start);
  }

  // Write the remaining arcs of a prefix, and its backoff. `end` is log p of the prefix's word and </s>.
  void write_place(int32_t state, int64_t place, double end) {
    const int32_t node = places.nodes[place], word_arc = places.word_arcs[place];
    const int64_t row = row_of(place);
    const double taken = places.mass[place];
    if (state == 0 || word_arc >= 0) {
      for (int64_t child = trie.child_offsets[node]; child < trie.child_offsets[node + 1]; ++child) {
        if (trie.child_nodes[child] < 0) {
          const Found found = own_forms.find(state, trie.child_forms[child]);
          out.write(row, trie.child_tokens[child], found.weight + lm.log_probs[found.at] - taken, lm.targets[found.at]);
        } else {
          const Found found = own_nodes.find(state, trie.child_nodes[child]);
          out.write(row, trie.child_tokens[child], found.weight + places.mass[found.at] - taken, row_of(found.at));
        }
      }
    }
    if (!std::isnan(end)) out.write(row, boundaries.vocab_size, end - taken, lm.start);
    if (word_arc >= 0) {  // a token that doesn't continue the word begins the next word
      set_backoff(row, lm.targets[word_arc], lm.log_probs[word_arc] - taken);
    } else if (state == 0) {  // the word is unknown: the score of its prefix is taken back
      set_backoff(row, row_of(0), lm.unknown + trie.depths[node] * lm.unknown_token - taken);
    } else {
      const int64_t lower = places.lower[place];
      double weight = 0;
      int32_t under = lm.backoff_states[state];
      for (; lower < places.first_place[under] || lower >= places.first_place[under + 1]; under = lm.backoff_states[under])
        weight += lm.backoff_weights[under];
      set_backoff(row, row_of(lower), weight + lm.backoff_weights[state] + places.mass[lower] - taken);
    }
  }

  const FormLM& lm;
  const NgpulmSpellingTrie& trie;
  const NgpulmBoundaries& boundaries;
  const NgpulmPlaces& places;
  const Owned own_forms, own_nodes;
  ArcWriter<Token> out;
  PlaceWalk walk;
  std::vector<double> ends;
  const int32_t delimiter;
};

}  // namespace
}  // namespace ngpulm

using namespace ngpulm;

// Write the first place of each state of the language model, and the end of all places: first_place [S + 1]. Returns the
// number of places.
NGPULM_EXPORT int64_t ngpulm_count_places(const NgpulmFormLM* lm, const NgpulmSpellingTrie* trie, int64_t* first_place) {
  return guarded([&]() -> int64_t {
    PlaceWalk walk(*trie);
    first_place[0] = 0;
    for (int32_t state = 0; state < lm->num_states; ++state) {
      walk.begin(first_place, state);
      if (state == 0)
        walk.next = trie->num_nodes;
      else
        for (int64_t arc = lm->offsets[state]; arc < lm->offsets[state + 1]; ++arc) walk.go(lm->forms[arc]);
      first_place[state + 1] = walk.next;
    }
    return first_place[lm->num_states];
  });
}

// Write for each place: its node; the log of the probability of all words through it; the LM's arc for the word that ends
// there (-1 if the state has none); and the place of the same node under a shorter context. Also write the start of the arcs
// of each state of the automaton: arc_offsets [states + 1]. Returns the number of arcs.
NGPULM_EXPORT int64_t ngpulm_weigh_places(const NgpulmFormLM* given, const NgpulmSpellingTrie* trie,
                                          const NgpulmBoundaries* boundaries, const NgpulmPlaces* places,
                                          int32_t* arc_offsets) {
  return guarded([&]() -> int64_t {
    const FormLM lm{*given};
    const Owned own_forms{lm, lm.offsets, lm.forms}, own_nodes{lm, places->first_place, places->nodes};
    const bool has_delimiter = boundaries->delimiter >= 0;
    PlaceWalk walk(*trie);
    std::vector<double> own, below;
    // Each count is stored one element after the offset that it becomes.
    const int64_t num_states = lm.num_states, num_rows = num_states + places->first_place[num_states];
    std::fill_n(arc_offsets, num_rows + 1, 0);
    int32_t* const counts = arc_offsets + 1;
    for (int32_t state = 0; state < num_states; ++state) {
      const int64_t first = places->first_place[state], end = places->first_place[state + 1];
      int32_t* const place_counts = counts + num_states;
      own.assign(end - first, 0), below.assign(end - first, 0);
      std::fill(places->word_arcs + first, places->word_arcs + end, -1);
      counts[state] = has_delimiter + !std::isnan(lm.ends[state]);
      OwnedWalk lower_forms(own_forms, lm.backoff_states[state]);
      walk.begin(places->first_place, state);
      for (int64_t arc = lm.offsets[state]; arc < lm.offsets[state + 1]; ++arc) {
        const int32_t form = lm.forms[arc];
        const double probability = std::exp(lm.log_probs[arc]);
        double lower = 0;
        if (state != 0) {
          const Found found = lower_forms.find(form);
          lower = std::exp(found.weight + lm.log_probs[found.at]);
        }
        walk.go(form);
        for (int64_t depth = 0; depth < walk.length && walk.node(depth) >= 0; ++depth) {
          const int64_t place = walk.place_at[depth];
          if (depth >= walk.shared) places->nodes[place] = walk.node(depth);
          own[place - first] += probability;
          below[place - first] += lower;
          if (depth + 1 == walk.length) places->word_arcs[place] = int32_t(arc);
        }
        for (int64_t depth = walk.shared; depth < walk.length; ++depth) {
          if (depth == 0)
            ++counts[state];
          else if (places->word_arcs[walk.place_at[depth - 1]] < 0)
            ++place_counts[walk.place_at[depth - 1]];
        }
        if (has_delimiter) ++place_counts[walk.place_at[walk.length - 2]];  // </s> in place of the delimiter
      }
      if (state == 0) {
        counts[0] = boundaries->vocab_size + 1;
        const int64_t starts = std::count(boundaries->begins_word, boundaries->begins_word + boundaries->vocab_size, 1);
        place_counts[0] = int32_t(has_delimiter ? boundaries->vocab_size + 1 : boundaries->vocab_size - starts);
        places->nodes[0] = 0, places->mass[0] = 0, places->lower[0] = 0;
      }
      OwnedWalk lower_nodes(own_nodes, lm.backoff_states[state]);
      const double backoff = bounded_exp(lm.backoff_weights[state]);
      for (int64_t place = first + (state == 0); place < end; ++place) {
        const int32_t node = places->nodes[place];
        if (places->word_arcs[place] >= 0)
          place_counts[place] += int32_t(trie->child_offsets[node + 1] - trie->child_offsets[node]);
        if (state == 0) {
          places->mass[place] = bounded_log(own[place]);
          places->lower[place] = 0;
          continue;
        }
        const Found lower = lower_nodes.find(node);
        places->lower[place] = int32_t(lower.at);
        const double log_all_below = lower.weight + places->mass[lower.at];
        places->mass[place] = log_mass(own[place - first], below[place - first], log_all_below, backoff);
      }
    }
    int64_t total = 0;
    for (int64_t row = 0; row < num_rows; ++row) counts[row] = int32_t(total += counts[row]);
    return total;
  });
}

// Write the arcs and backoffs of the states `first .. last - 1` of the language model, and of the places under them. Returns
// -1, or a state of the automaton whose number of arcs differs from the counted number.
NGPULM_EXPORT int64_t ngpulm_compose(int64_t first, int64_t last, const NgpulmFormLM* given, const NgpulmSpellingTrie* trie,
                                     const NgpulmBoundaries* boundaries, const NgpulmPlaces* places,
                                     const NgpulmComposed* out) {
  return guarded([&]() -> int64_t {
    const auto compose = [&](auto token) -> int64_t {
      const FormLM lm{*given};
      Composition<decltype(token)> composition(lm, *trie, *boundaries, *places, *out);
      for (int64_t state = first; state < last; ++state)
        if (const int64_t row = composition.compose(int32_t(state)); row >= 0) return row;
      return -1;
    };
    return out->token_bytes == 2 ? compose(int16_t()) : compose(int32_t());
  });
}
