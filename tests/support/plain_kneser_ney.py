"""Modified Kneser-Ney over dictionaries, from the textbook (Chen and Goodman 1998); it owes nothing to the package."""

from __future__ import annotations

from collections import Counter, defaultdict

BOS, EOS, UNK = "<s>", "</s>", "<unk>"


def occurrences(sentences, order):
    """How often each n-gram of each order occurs; `<s>` once a sentence."""
    counts = [Counter() for _ in range(order)]
    for sentence in sentences:
        padded = (BOS, *(UNK if token == -1 else token for token in sentence), EOS)
        for n in range(1, order + 1):
            counts[n - 1].update(padded[i : i + n] for i in range(len(padded) - n + 1))
    return counts


class PlainKneserNey:
    """Probabilities by recursion. `discounts` are given for each order, so that only their use is checked here."""

    def __init__(self, sentences, order, discounts, prune=()):
        raw = occurrences(sentences, order)
        thresholds = list(prune or [0]) + [(prune or [0])[-1]] * order
        self.order, self.discounts = order, discounts
        adjusted = []
        for n in range(1, order + 1):
            if n == order:
                adjusted.append(dict(raw[n - 1]))
                continue
            before = defaultdict(set)
            for gram in raw[n]:
                before[gram[1:]].add(gram[0])
            adjusted.append({g: c if g[0] == BOS else len(before[g]) for g, c in raw[n - 1].items()})
        adjusted[0][(BOS,)] = 0
        self.kept = [
            {g for g in adjusted[n - 1] if (n == 1 or raw[n - 1][g] > thresholds[n - 1]) and UNK not in g}
            for n in range(1, order + 1)
        ]
        self.adjusted = adjusted
        self.children = [defaultdict(list) for _ in range(order)]
        for n in range(order):
            for gram in adjusted[n]:
                self.children[n][gram[:-1]].append(gram)
        self.types = {g[0] for g in self.kept[0]} - {BOS} | {UNK}

    def handed_down(self, context):
        """The part of a context's probability that its suffix shares out."""
        grams = self.children[len(context)][context]
        total = sum(self.adjusted[len(context)][g] for g in grams)
        if not total:
            return 1.0
        spared = 0.0
        for g in grams:
            count = self.adjusted[len(context)][g]
            spared += self.discounts[len(context)][min(count, 3) - 1] if g in self.kept[len(context)] and count else count
        return spared / total

    def probability(self, context, token):
        """p(token | context), for a context whose n-grams were kept."""
        gram = (*context, token)
        lower = self.probability(context[1:], token) if context else 1.0 / len(self.types)
        n = len(context)
        if not context and token == UNK:
            return self.handed_down(()) * lower
        grams = self.children[n][context]
        if not grams:
            return lower
        total = sum(self.adjusted[n][g] for g in grams)
        count = self.adjusted[n].get(gram, 0)
        own = (count - self.discounts[n][min(count, 3) - 1]) / total if gram in self.kept[n] and count else 0.0
        return own + self.handed_down(context) * lower
