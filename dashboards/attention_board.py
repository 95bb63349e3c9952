"""Attention errors of one run, by pass and layer."""

from board import Board, Row, pass_variable, rank_variable, run_variable
from panel import LAYERS, NATS, RATIO, SIGMA, ULP, Query, by_step, layers, limited, lines, of_ranks
from rule import Values

PASS, MEAN, LEAST = ',pass="$pass"', ',stat="mean"', ',stat="min"'


def worst(metric: str, more: str = "", what: str = "") -> Query:
    """Selects the five worst of the chosen ranks."""
    return Query(f"topk(5, max by (rank) ({metric}{more}))", f"rank {{{{rank}}}}{what}")


def errors(values: Values) -> Row:
    limit, bias = values["deviation"], values["bias"]
    ratio = of_ranks("attention_deviation_ratio", PASS + MEAN)
    return Row(
        "Error against the fp64 reference",
        [
            limited(
                lines(
                    "Deviation ratio",
                    "Error of the kernel over the error of unfused attention in the same precision, of the five worst"
                    " ranks. Healthy is below 1. An alert fires above the dashed line: the lower for"
                    " forward, the upper for backward.",
                    RATIO,
                    worst(ratio),
                ),
                ("orange", limit["forward"]),
                ("red", limit["backward"]),
            ),
            limited(
                lines(
                    "Bias",
                    "Size of the mean signed error of the output, of the worst rank. The rounded reference is the"
                    " control: it should stay near 0.",
                    ULP,
                    Query(f"max by (of) (abs({of_ranks('attention_bias_ulp', PASS)}))", "{{of}}"),
                ),
                ("red", bias["ulp"]),
            ),
            limited(
                lines(
                    "Bias, z",
                    "The same bias in standard errors between slices, of the worst rank.",
                    SIGMA,
                    Query(f"max by (of) (abs({of_ranks('attention_bias_zscore', PASS)}))", "{{of}}"),
                ),
                ("red", bias["z"]),
            ),
            layers(
                "Deviation ratio by layer",
                "Mean over the last samples of each layer, of the worst rank. Healthy is below 1.",
                of_ranks("layer_attention_deviation_ratio", PASS),
                RATIO,
                0,
                limit["backward"],
            ),
            layers(
                "Bias by layer",
                "Size of the mean signed error of each layer, of the worst rank.",
                f"abs({of_ranks('layer_attention_bias_ulp', PASS)})",
                ULP,
                0,
                4 * bias["ulp"],
            ),
            lines(
                "Relative error",
                "Error against the fp64 reference, L2 norm over L2 norm per row. mean: the mean of the last samples of"
                " the worst selected rank; max: the largest sample of all selected ranks.",
                "percentunit",
                Query(f"max by (stat) ({of_ranks('attention_relative_error', PASS)})", "{{stat}}"),
            ),
            lines(
                "Error of log-sum-exp",
                "Largest error of the log-sum-exp over the last samples.",
                NATS,
                Query(f"max({of_ranks('attention_lse_error_abs_max')})", "largest"),
            ),
            limited(
                lines(
                    "Layers in alarm",
                    "Number of layers beyond a limit, by kind of limit, of the rank with most.",
                    LAYERS,
                    Query(f"max by (of) ({of_ranks('attention_alarm_layers', PASS)})", "{{of}}"),
                ),
                ("red", 1),
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
                "Largest magnitude of a scaled score over the last samples. Softmax saturates near 100.",
                NATS,
                Query(f"max({of_ranks('attention_logit_abs_max')})", "largest"),
            ),
            by_step(
                "Entropy, by step",
                "Entropy of the attention weights of a row: mean and smallest of the ranks.",
                NATS,
                Query(f"avg({of_ranks('attention_entropy_nats', MEAN)})", "mean"),
                Query(f"min({of_ranks('attention_entropy_nats', LEAST)})", "smallest"),
            ),
            layers(
                "Largest logit by layer",
                "Largest magnitude of a scaled score over the last samples of each layer.",
                of_ranks("layer_attention_logit_abs_max"),
                NATS,
                0,
                values["logit_forecast"]["limit"],
            ),
            lines(
                "Entropy",
                "Entropy of the attention weights of a row, of the lowest and the highest rank.",
                NATS,
                Query(f"min by (stat) ({entropy})", "{{stat}}, lowest rank"),
                Query(f"max by (stat) ({entropy})", "{{stat}}, highest rank"),
                width=6,
            ),
            lines(
                "Near ties",
                "Share of rows whose second largest score is within 1/512 of the largest.",
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
