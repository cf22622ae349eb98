"""How many tokens' logits are held at once: a pure function of shapes."""

import math

# A narrow model's head gradient would let chunks shrink to nothing. Below this many logits (16 MiB
# in float32) they are too little work for an accelerator, and for a CPU's cache small enough.
LEAST_LOGITS = 2**22
LEAST_ROWS = 256


def chunk_rows(num_tokens: int, model_width: int, vocab: int) -> int:
    """Tokens per chunk, for the tokens and the part of the vocabulary that one device holds.

    A chunk of R tokens makes R x vocab float32 logits and, to add its share, reads and writes the
    whole head gradient, model_width x vocab float32. At R = 4 x model_width the logits take four
    times the bytes of that gradient, and moving it costs half of one pass over the logits, of which
    a chunk needs four or five: larger chunks would take more memory and gain little.
    So R is that, or what makes `LEAST_ROWS` and `LEAST_LOGITS` if more, or all tokens if fewer.

    Of the sizes from half to one and a half of it, the nearest that divides `num_tokens` is taken,
    since a shorter last chunk is compiled once more; without one, the chunks are nearly even.
    """
    wanted = max(4 * model_width, LEAST_ROWS, math.ceil(LEAST_LOGITS / vocab))
    fewest, most = math.ceil(num_tokens / (1.5 * wanted)), 2 * num_tokens // wanted
    even = [count for count in range(fewest, most + 1) if num_tokens % count == 0]
    if not even:
        return math.ceil(num_tokens / math.ceil(num_tokens / wanted))
    return num_tokens // min(even, key=lambda count: abs(math.log(num_tokens / count / wanted)))
