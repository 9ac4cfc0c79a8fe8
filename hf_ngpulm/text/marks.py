"""Marks by which pieces of tokenizers tell where words begin or end."""

# SentencePiece, byte-level BPE, WordPiece, subword-nmt, older BPE.
WORD_MARKS = ("▁", "Ġ", "##", "@@", "</w>")
