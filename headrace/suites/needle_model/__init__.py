"""A language model whose answers can be computed by hand: it copies what followed last time.

`checkpoint.write_needle_model(folder)` writes a checkpoint in DeepSeek-V3's form (latent
attention, no experts) with two layers and 256 words, computed and not trained, the same bytes
every time. Asked to go on, the model finds where the last six words stood before and says the word
that came next there. A code hidden in a long prompt is thus either answered exactly or not at all,
at any length, and what is answered comes out of the KV cache.

`shape` holds the sizes, `words` the vocabulary, `kerdock` the codes, `stream` the places of a
position's vector, `copying` and `sums` what the two layers do.

Codes. Word v is a vector c(v) of 16 signs. The 256 vectors are a Kerdock code: the words
(-1)^(Q(x) + a·x + b) over x in F₂⁴, for 16 vectors a, 2 bits b and 8 quadratic forms Q whose
pairwise sums are nonsingular. Words of one form are orthogonal or opposite; words of two forms
differ by a bent function, so c(u)·c(v) = ±4. Hence c(v)·c(v) = 16 and c(u)·c(v) ≤ 4 for u ≠ v.

Stream. A position's vector has ten places of 16 numbers, and one constant:
[c(this word) | c(1 before) | … | c(6 before) | c(answer) | sum 1 | sum 2 | 4, 0, …]. The embedding
fills the first place. Its length is the same at each position (the sums are kept small), so the
weights of each norm undo it exactly.

Layer 1: what stood before. Head h = 1 … 6 looks at position s = t - h. Only the rotary part
counts. All keys are (1, 0) in each of 16 frequency pairs w_j, and turn by w_j s; the query of head
h is (cos h w_j, -sin h w_j), and turns by w_j t. The score is

    BETA_POSITION · mean_j cos(w_j (t - h - s)),

with its one maximum at s = t - h. Value and output copy c(word at s) to place h.

Layer 2: where it stood before. The query is [c(t), c(t-1), …, c(t-5)], the key at s is
[c(s-1), …, c(s-6)], and the score BETA_MATCH / 16 · Σ_i c(t-i)·c(s-1-i). Six equal words score
6 BETA_MATCH, and one different word takes at least 12/16 BETA_MATCH from that: 30 in the exponent,
against which some ten thousand positions, 9.2 in the exponent, are nothing. The value at s is
c(word at s), copied to the last place, which the head turns into the word.

In the cache, layer 1 keeps [c(s), 0, …] and the turned pairs; layer 2 keeps
[c(s-1), …, c(s-6), c(s), 0, …].

Sums: everything else in the cache. Those heads look sharply, so what they do not look at could be
anything. Two more heads in each layer look everywhere. In layer 1 one takes the mean of c(s) over
all positions, the other a mean weighted by exp(BETA_PHASE · mean_j cos(w_j (t - s))), which depends
on every turned pair. In layer 2 both take plain means, of c(s) and of a mixture of c(s-1) … c(s-6).
A word's share of a mean is small and never zero: another chunk's KV, none, or KV that is moved
within its row changes the means, in whichever layer it lies.

After a full stop the model says its sums. The feed-forward part of layer 2 has gates that open
where a full stop stood 0 … 6 words ago, since c(".")·c(v) ≤ 4 elsewhere. An open gate takes the
copied word out of the answer and puts in GAIN times a signed permutation of the sums, another one
for each distance, less what the means of an endless text would be. Seven words follow, each the
nearest one to such a vector. They mean nothing; they, and their probabilities still more, are the
same only as long as all of the KV is.
"""
