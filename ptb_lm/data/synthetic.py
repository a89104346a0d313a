"""The synthetic corpus: text drawn from a known process, so that the best possible perplexity is known.

The process is newswire-like English as a hidden Markov model. Its state is a topic and a slot in the grammar
of a sentence. Two things are worth remembering that no single word shows for certain: the number of the
subject until its verb, and the topic, which lasts for several sentences.

Shapes: S = states, V = words.
"""

import hashlib
import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ptb_lm.common.files import atomic_write
from ptb_lm.data.vocabulary import EOS

_SEEDS = {"train": 1, "valid": 2, "test": 3}
_TOKENS = {"train": 400_000, "valid": 25_000, "test": 25_000}  # a split ends with the last whole sentence
# They change with the numbers, the tables and the sampling: the digests of the texts, and the exact
# perplexities of the process that writes them, each word of a text scored but the first.
SHA256 = {
    "train": "a3687bad6fc787b1be96867586d2ca74c460ea2267f8bebcf2a25c5812c7e692",
    "valid": "d8b7a5d9d13ddd618c2de410a740c849a0e294e106918184f214e0631ea9cbb6",
    "test": "a47752104d8a2b315d310edc115412cd0cedfd9dd734f5ad34873e89e20de4b6",
}
BEST_PERPLEXITIES = {"valid": 24.856202692430227, "test": 24.97732120196155}

# Words of a class by falling frequency. Nouns and verbs are stems: plural and third person end in -s.
_WORDS = dict(
    line.split(": ")
    for line in """\
markets noun: stock share price investor bond trader fund rate dollar analyst broker yield dividend loan
markets verb: trade gain drop climb sell slip tumble rebound surge value rank underwrite
markets adjective: foreign heavy volatile cautious nervous overseas preferred bullish bearish speculative
markets name: kessler barlow whitcomb dexter marlin hollis ashby granger tolland pruett
energy noun: barrel plant pipeline well producer reserve tanker fuel reactor cartel mine platform grid turbine
energy verb: pump drill export burn ship refine store leak heat power tap ignite
energy adjective: nuclear offshore electric crude solar arctic idle coastal unleaded thermal seismic flammable
energy name: petrona delmar haldane norvik brandt sabine calder orinoco texcal kuwari
courts noun: court judge lawyer trial lawsuit ruling appeal defendant juror verdict settlement motion fraud
courts verb: sue settle indict plead convict overturn uphold affirm acquit arrest prosecute subpoena
courts adjective: federal legal criminal civil guilty pending judicial punitive innocent liable lenient sworn
courts name: brennan ortega stallings farrow mccrae rosen pemberton whitlow castille lyle
politics noun: president bill senator minister budget election campaign voter candidate lawmaker rebel summit
politics verb: vote debate negotiate elect endorse govern resign campaign amend nominate legislate filibuster
politics adjective: soviet democratic republican liberal moderate communist diplomatic radical parliamentary
politics name: gorman danforth warsaw managua beirut havana thornburg pretoria lindqvist okafor
technology noun: computer chip program engineer network printer disk screen patent circuit satellite robot
technology verb: design install license connect upgrade program transmit invent scan clone automate encode
technology adjective: electronic digital advanced compatible portable magnetic optical graphic obsolete
technology name: datacorp micronet zenova quantex tandrel intrex novalink silvan ridgeware altona
farming noun: farmer crop drought acre storm field harvest grain bushel seed herd cow soybean flood orchard
farming verb: plant feed harvest spoil soak graze flood irrigate ripen sow thaw fertilize
farming adjective: dry rural wet tropical seasonal fertile organic frozen ripe rainy stormy muddy windy barren
farming name: kansas iowa nebraska dakota georgia ukraine fresno punjab bolivia salinas
noun: year plan official group report executive week month cost worker problem deal manager result decision
verb: say report expect want see make need take help face raise cut consider improve
adjective: new big last recent major strong small early late large weak current possible final unusual
name: washington chicago london tokyo
determiner sg: the this its one another every each
determiner pl: the its some many these most several few
preposition: of in for on with by from at after under against before without during
adverb: today again sharply soon yesterday quickly often slowly abroad together here quietly rarely early
conjunction: and but as while because although
end: <eos>""".splitlines()
)
_TOPICS = tuple(name.removesuffix(" noun") for name in _WORDS if name.endswith(" noun"))
_OWN, _SHARED, _STRAY = 0.7, 0.25, 0.05  # share of the words of the topic, of every topic, of other topics
_TOPIC_STAYS = 0.85  # probability that the next sentence keeps the topic

# Slot -> (its word class, {the slot that follows: probability}). A slot with "#", the number of the phrase it
# is in, stands for two: sg and pl. The inner noun, between subject and verb, is plural whatever the subject.
_SUBJECT = {"determiner sg": 0.42, "determiner pl": 0.33, "name": 0.25}
_PLACE = {"object determiner sg": 0.4, "object determiner pl": 0.2, "object noun pl": 0.2, "object name": 0.2}
_OBJECT = {"object determiner sg": 0.3, "object determiner pl": 0.25}
_GRAMMAR = {
    "end": ("end", _SUBJECT),
    "name": ("name", {"verb sg": 1.0}),
    "determiner #": ("determiner #", {"adjective #": 0.4, "noun #": 0.6}),
    "adjective #": ("adjective", {"adjective #": 0.15, "noun #": 0.85}),
    "noun #": ("noun #", {"verb #": 0.7, "inner preposition #": 0.3}),
    "inner preposition #": ("preposition", {"inner adjective #": 0.4, "inner noun #": 0.6}),
    "inner adjective #": ("adjective", {"inner noun #": 1.0}),
    "inner noun #": ("noun pl", {"verb #": 1.0}),
    "verb #": ("verb #", {**_OBJECT, "preposition": 0.2, "adverb": 0.15, "end": 0.1}),
    "object determiner #": ("determiner #", {"object adjective #": 0.4, "object noun #": 0.6}),
    "object adjective #": ("adjective", {"object adjective #": 0.15, "object noun #": 0.85}),
    "object noun #": ("noun #", {"preposition": 0.25, "adverb": 0.08, "conjunction": 0.12, "end": 0.55}),
    "object name": ("name", {"conjunction": 0.2, "end": 0.8}),
    "preposition": ("preposition", _PLACE),
    "adverb": ("adverb", {"preposition": 0.3, "conjunction": 0.1, "end": 0.6}),
    "conjunction": ("conjunction", _SUBJECT),
}


def ensure(folder: Path) -> None:
    """Write those of train.txt, valid.txt and test.txt into `folder` that are not there, or not right.

    Raises:
        OSError: The folder cannot be made, read or written.
    """
    for split, digest in SHA256.items():
        path = folder / f"{split}.txt"
        if not (path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == digest):
            folder.mkdir(parents=True, exist_ok=True)
            atomic_write(path, _write(split))


def _write(split: str) -> bytes:
    """Return the text of a split."""
    model, words = newswire()
    ids = model.sample(_TOKENS[split], _SEEDS[split])
    ids = ids[: len(ids) - ids[::-1].index(words.index(EOS))]
    return (" ".join(words[i] for i in ids) + " ").replace(" <eos> ", "\n").encode()


@dataclass(frozen=True, eq=False)
class HiddenMarkovModel:
    """A chain of hidden states, each of which emits one word.

    Attributes:
        initial: [S], the distribution of the first state.
        transition: [S, S], a row per state: the distribution of the next state.
        emission: [S, V], a row per state: the distribution of its word.
    """

    initial: NDArray[np.float64]
    transition: NDArray[np.float64]
    emission: NDArray[np.float64]

    def sample(self, length: int, seed: int) -> list[int]:
        """Return `length` word ids, drawn from the start; the same on every platform and NumPy version."""
        # NumPy guarantees the raw stream of a bit generator, not that of choice(). A double holds 53 bits.
        uniforms = (np.random.PCG64(seed).random_raw(2 * length) >> np.uint64(11)) * 2.0**-53
        transition, emission = [*map(_bounds, self.transition)], [*map(_bounds, self.emission)]
        bounds = _bounds(self.initial)
        ids = []
        for to_state, to_word in uniforms.reshape(length, 2).tolist():
            state = bisect_right(bounds, to_state)
            ids.append(bisect_right(emission[state], to_word))
            bounds = transition[state]
        return ids


@cache
def newswire() -> tuple[HiddenMarkovModel, tuple[str, ...]]:
    """Return the process that writes the corpus, and its words (`<eos>` among them) in the order of ids."""
    grammar = {
        slot.replace("#", n): (name.replace("#", n), {key.replace("#", n): p for key, p in to.items()})
        for slot, (name, to) in _GRAMMAR.items()
        for n in (("sg", "pl") if "#" in slot else ("",))
    }
    step = np.array([[to.get(slot, 0.0) for slot in grammar] for _, to in grammar.values()])
    ends = np.array([[slot == "end"] for slot in grammar])
    topics = len(_TOPICS)
    turn = np.full((topics, topics), (1 - _TOPIC_STAYS) / (topics - 1))
    np.fill_diagonal(turn, _TOPIC_STAYS)
    emission = [_emission(topic, name) for topic in _TOPICS for name, _ in grammar.values()]
    words = sorted(set().union(*emission))
    model = HiddenMarkovModel(
        initial=np.kron(np.full(topics, 1 / topics), step[[*grammar].index("end")]),
        transition=np.kron(np.eye(topics), step * ~ends) + np.kron(turn, step * ends),
        emission=np.array([[row.get(word, 0.0) for word in words] for row in emission]),
    )
    return model, tuple(words)


def _emission(topic: str, word_class: str) -> dict[str, float]:
    """Return the words of a class, within a topic, with their probabilities."""
    stem = word_class.removesuffix(" sg").removesuffix(" pl")
    suffix = "s" if word_class in ("noun pl", "verb sg") else ""
    shares = {word_class: 1.0}
    if f"{topic} {stem}" in _WORDS:
        shares = {f"{other} {stem}": _STRAY / (len(_TOPICS) - 1) for other in _TOPICS}
        shares |= {f"{topic} {stem}": _OWN, stem: _SHARED}
    distribution: dict[str, float] = {}
    for name, share in shares.items():
        words = _WORDS[name].split()
        # Zipf's law. fsum, because sum() rounds differently from Python 3.12 on.
        norm = math.fsum(1 / rank for rank in range(1, len(words) + 1))
        for rank, word in enumerate(words, 1):  # a word in two lists gets both shares
            distribution[word + suffix] = distribution.get(word + suffix, 0.0) + share / rank / norm
    return distribution


def _bounds(probabilities: NDArray[np.float64]) -> list[float]:
    """Return where the outcomes' intervals in [0, 1) end, for inverse transform sampling by bisection."""
    # The last possible outcome gets no end, so that a rounded sum cannot send a draw beyond it.
    return list(accumulate(np.trim_zeros(probabilities, "b").tolist()[:-1]))
