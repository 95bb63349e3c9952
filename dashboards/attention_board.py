"""The Grafana dashboard "attention": attention errors of one run, by pass and layer, and attention scores. of_ranks()
selects a metric's series of the ranks that are chosen on the dashboard and have not ended. The metrics' label `of` is
the source of a bias (kernel, rounded_reference) or the kind of an alarm. `values` are the thresholds of alerts."""

from board import Board, Row, pass_variable, rank_variable, run_variable
from panel import DEVIATION, LAYERS, NATS, RATIO, SIGMA, ULP, Query, by_step, layer_heatmap, lines, of_ranks
from rule import Values

# Label matchers that of_ranks() appends to its own. $pass: the pass selected on the dashboard.
PASS, MEAN, MIN = ',pass="$pass"', ',stat="mean"', ',stat="min"'


def worst_ranks(expression: str) -> Query:
    """Selects the five ranks with the largest values."""
    return Query(f"topk(5, max by (rank) ({expression}))", "rank {{rank}}")


def errors(values: Values) -> Row:
    limit = values["verdict"]
    ratio = of_ranks("attention_fused_ratio", PASS + MEAN)
    return Row(
        "Error against the fp64 reference",
        [
            lines(
                "Error ratio",
                f"Ratio: {DEVIATION}, on the same inputs. Forward: of the output; backward: of dQ. Mean over the"
                " last 64 samples of a process rank; the five ranks with the highest mean. Usual is near 1. A"
                f" layer is in alarm if two of its samples are above {limit['forward']} (forward) or"
                f" {limit['backward']} (backward), the dashed lines, and in fp32 and fp64 above twice as much.",
                RATIO,
                worst_ranks(ratio),
                dashed=[("orange", limit["forward"]), ("red", limit["backward"])],
            ),
            lines(
                "Bias",
                "Magnitude of the mean signed error, in ulp (spacings of the number format), over the last 64"
                " samples of the worst process rank. Forward: of the output; backward: of dQ. kernel: your"
                " attention. rounded_reference: the fp64 result rounded once, a control that stays near 0. Usual"
                f" is near 0. In bf16 the limit is {limit['ulp']}, the dashed line (fp16: 1, fp32: 8192). A layer is in"
                f" alarm if it is above the limit and above {limit['z']} in 'Bias, z', and the control and fused"
                " attention are not.",
                ULP,
                Query(f"max by (of) (abs({of_ranks('attention_bias_ulp', PASS)}))", "{{of}}"),
                dashed=[("red", limit["ulp"])],
            ),
            lines(
                "Bias, z",
                "The mean signed error of 'Bias', divided by its standard error between samples: how certain it is"
                f" that the bias is not 0. Of the worst process rank. Below 3 is chance; an alarm needs more than"
                f" {limit['z']} here and a bias above its own limit.",
                SIGMA,
                Query(f"max by (of) (abs({of_ranks('attention_bias_zscore', PASS)}))", "{{of}}"),
                dashed=[("red", limit["z"])],
            ),
            layer_heatmap(
                "Error ratio by layer",
                f"Ratio: {DEVIATION}. Mean over the last 64 samples of each layer, of the worst process rank, over"
                f" time. Usual is near 1; the colours end at {limit['backward']}. A layer is in alarm if two of its"
                f" last 64 samples are above {limit['forward']} (forward) or {limit['backward']} (backward), in fp32"
                " and fp64 above twice as much.",
                of_ranks("layer_attention_fused_ratio", PASS),
                RATIO,
                colours_from=0,
                colours_to=limit["backward"],
            ),
            layer_heatmap(
                "Bias by layer",
                "Magnitude of the mean signed error of each layer, in ulp (spacings of the number format), over its"
                " last 64 samples; of the worst process rank, over time. Usual is near 0. In bf16, a layer above"
                f" {limit['ulp']} is in alarm if the bias is also certain (more than {limit['z']} standard errors) and"
                " fused attention has none.",
                f"abs({of_ranks('layer_attention_bias_ulp', PASS)})",
                ULP,
                colours_from=0,
                colours_to=4 * limit["ulp"],  # above the limit, so that layers in alarm differ in colour
            ),
            lines(
                "Relative error",
                "L2 norm of (kernel - fp64 reference) divided by the L2 norm of the reference, for each sampled row of"
                " the output (forward) or of dQ (backward). mean: over the last 64 samples, of the worst selected"
                " rank. max: the largest of these samples, of all selected ranks. There is no alarm, because the value"
                " depends on the format and the data: some 0.1 % is usual in bf16. Read 'Error ratio' for a"
                " verdict.",
                "percentunit",
                Query(f"max by (stat) ({of_ranks('attention_relative_error', PASS)})", "{{stat}}"),
            ),
            lines(
                "Error of log-sum-exp",
                "Largest difference between the log-sum-exp that the forward kernel returned for a row and that of the"
                " fp64 reference. Over the last 64 samples of all layers and selected ranks. What is usual grows with"
                " the scores: rounding a score of 100 to bf16 changes it by up to 0.25 nats. A layer is in alarm if the"
                " error is larger than rounding explains.",
                NATS,
                Query(f"max({of_ranks('attention_lse_error_abs_max')})", "largest"),
            ),
            lines(
                "Layers in alarm",
                "Number of layers whose last 64 samples exceed an alarm limit, of the process rank with most. By"
                " kind: error (it is too large), bias (the error has a direction), nonfinite (NaN"
                " or Inf where the reference is finite). Usual is 0; each alarm is in the record.",
                LAYERS,
                Query(f"max by (of) ({of_ranks('attention_alarm_layers', PASS)})", "{{of}}"),
                dashed=[("red", 1)],
            ),
        ],
    )


def scores(values: Values) -> Row:
    entropy = of_ranks("attention_entropy_nats")
    return Row(
        "Scores",
        [
            by_step(
                "Largest logit, by step",
                "Largest magnitude of a logit (scaled score before softmax), over the last 64 samples of all layers and"
                " selected ranks. Softmax saturates near 100, where an alert fires.",
                NATS,
                Query(f"max({of_ranks('attention_logit_abs_max')})", "largest"),
            ),
            by_step(
                "Entropy, by step",
                "Entropy of the attention weights of a row, over the last 64 samples of all layers. mean: averaged over"
                " rows and selected ranks; smallest: of a single row. 0 is attention to one key; ln(n) is equal"
                " attention to n keys. There is no usual value; a sudden lasting fall of the mean raises an info"
                " alert.",
                NATS,
                Query(f"avg({of_ranks('attention_entropy_nats', MEAN)})", "mean"),
                Query(f"min({of_ranks('attention_entropy_nats', MIN)})", "smallest"),
            ),
            layer_heatmap(
                "Largest logit by layer",
                "Largest magnitude of a logit (scaled score before softmax), over the last 64 samples of each layer,"
                " of the highest selected rank, over time. Softmax saturates near 100, where the colours end and an"
                " alert fires.",
                of_ranks("layer_attention_logit_abs_max"),
                NATS,
                colours_from=0,
                colours_to=values["logit_forecast"]["limit"],
            ),
            lines(
                "Entropy",
                "Entropy of the attention weights of a row, over the last 64 samples of all layers: mean and smallest"
                " (min), each of the selected rank where it is lowest and where it is highest. 0 is attention to one"
                " key.",
                NATS,
                Query(f"min by (stat) ({entropy})", "{{stat}}, lowest rank"),
                Query(f"max by (stat) ({entropy})", "{{stat}}, highest rank"),
                width=6,
            ),
            lines(
                "Near ties",
                "Share of the sampled rows whose two largest scores differ by at most 1/512 (in nats), on"
                " the selected rank where the share is highest. There is no alarm: such rows make low-precision kernels"
                " biased, so read it beside 'Bias'.",
                "percentunit",
                Query(f"max({of_ranks('attention_near_tie_ratio')})", "highest rank"),
                width=6,
            ),
        ],
    )


def attention(values: Values) -> Board:
    return Board(
        "attention",
        "foreshock: attention",
        "Error of attention against its fp64 reference, and its scores.",
        [run_variable(), rank_variable(), pass_variable()],
        [errors(values), scores(values)],
    )
