"""What a reader of a report should know of its figures."""

_TEXT = """
Times are medians over rounds. In a round every variant does a block of steps, in random order, so that a
machine that slows down slows all of them. A block takes about a second or longer, unless a remark says that
its steps were cut, and comes after a step that is not timed. How many steps and rounds there are is fixed
before the first. The ratio of a variant to the baseline is taken round by round; its figure is the geometric
mean of these ratios, first within a process and then over processes. It need not be the ratio of the two
medians.

Before it is timed, what is timed does two training steps of the same size, from weights at which every part
of it matters. Their losses and the gradient of every tensor are compared with those of a NumPy reference in
float64, and a variant that is off by more than its precision explains is wrong: it has no figures. The
details give the largest errors. A plain loop with dropout does not tell its masks. So its gradients are
compared while its dropout is switched off, or in a second model without dropout, which the remarks then say.
With dropout, its mean loss and the length of a step are compared.

The 95 % interval is the confidence interval of that ratio, by Student's t on logarithms. Rounds lie within
processes: what a process draws once, such as its memory layout and tuned kernels, is the same in all of its
rounds. So the process is the unit, and its value the mean of its rounds (Kalibera and Jones, 2013). Where
there are fewer than three processes the rounds are taken instead, and the interval lacks what processes draw:
the details say which. An interval covers what varies within one session on one machine. It does not cover
another machine, other versions or another day. Each is a statement by itself: of twenty, one is wrong on
average. Where quartiles are given, they are of the rounds.

A variant whose name ends in #again is the same program as the one of the name before that, measured a second
time. The true ratio of the two is 1 (an A/A test), and how far the measured one is from 1 shows what the
machine does by itself. Half the width of its interval is the run's resolution: a smaller difference between
two variants may not show.

The fraction of the GEMM rate is the declared FLOPs of a step by its time, over what the same machine reached
in matrix multiplication of the variant's precision, measured for half a second right before and right after
the block, of which the larger counts. It is that of the fastest of its libraries at the fastest shape, among
large square matrices and the products of the workload's own step; the details name both, and the threads. A
fraction above 1 means that the limit was underestimated, and that is said in its place. Start-up
(build and warm-up, with any compilation) is not part of the timed steps.

The roofline is an estimate of a language model's step at best on this machine: its FLOPs at the GEMM rate (or
the weights at the rate at which the machine copies memory, if that takes longer), and, in training, its
update at that copy rate, which must wait for the norm of all gradients; both rates are of the same round. The
fraction is that time over the measured one. The products are counted to read each weight once, however often
they use it, and to write its gradient once; the update reads both anew, though a cache may still hold them.
Activations, and that the time steps of an LSTM wait for each other, are not counted.

Published figures are of other machines and years: their ratios compare, their times do not.
"""

PARAGRAPHS = tuple(" ".join(paragraph.split()) for paragraph in _TEXT.strip().split("\n\n"))
