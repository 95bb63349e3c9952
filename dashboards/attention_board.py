"""What the attention of one run errs by, and where."""

from board import Board, Row, pass_variable, rank_variable, run_variable
from panel import Query, by_step, layers, limited, lines, of_ranks
from rule import Values

PASS, MEAN, LEAST = ',pass="$pass"', ',stat="mean"', ',stat="min"'


def worst(metric: str, more: str = "", what: str = "") -> Query:
    """Of the chosen ranks the five worst."""
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
                    "Error of the kernel over what unfused attention in the same precision errs by; the"
                    " five worst ranks. Healthy is below 1.",
                    "none",
                    worst(ratio),
                ),
                ("orange", limit["forward"]),
                ("red", limit["backward"]),
            ),
            limited(
                lines(
                    "Bias",
                    "Signed error of the output, pooled over slices, of the worst rank; the rounded reference is the"
                    " control.",
                    "none",
                    Query(f"max by (of) (abs({of_ranks('attention_bias_ulp', PASS)}))", "{{of}}"),
                ),
                ("red", bias["ulp"]),
            ),
            limited(
                lines(
                    "Bias, z",
                    "The bias in standard errors between slices, of the worst rank.",
                    "none",
                    Query(f"max by (of) (abs({of_ranks('attention_bias_zscore', PASS)}))", "{{of}}"),
                ),
                ("red", bias["z"]),
            ),
            layers(
                "Deviation ratio by layer",
                "Mean of the last samples of each layer, the worst of the ranks.",
                of_ranks("layer_attention_deviation_ratio", PASS),
                0,
                limit["backward"],
            ),
            layers(
                "Bias by layer",
                "Size of the pooled bias of each layer in ulp, the worst of the ranks.",
                f"abs({of_ranks('layer_attention_bias_ulp', PASS)})",
                0,
                4 * bias["ulp"],
            ),
            lines(
                "Relative error",
                "L2 over L2 per row against the reference: mean and largest of the last samples.",
                "percentunit",
                Query(f"max by (stat) ({of_ranks('attention_relative_error', PASS)})", "{{stat}}"),
            ),
            lines(
                "Error of log-sum-exp",
                "Largest of the last samples, in nats.",
                "none",
                Query(f"max({of_ranks('attention_lse_error_abs_max')})", "largest"),
            ),
            limited(
                lines(
                    "Layers in alarm",
                    "Layers beyond a limit, by what is beyond it, of the rank that has most.",
                    "none",
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
                "Largest magnitude of a scaled score over the last samples.",
                "none",
                Query(f"max({of_ranks('attention_logit_abs_max')})", "largest"),
            ),
            by_step(
                "Entropy, by step",
                "Of the attention weights of a row, in nats: mean and least of the ranks.",
                "none",
                Query(f"avg({of_ranks('attention_entropy_nats', MEAN)})", "mean"),
                Query(f"min({of_ranks('attention_entropy_nats', LEAST)})", "least"),
            ),
            layers(
                "Largest logit by layer",
                "Of the last samples of each layer.",
                of_ranks("layer_attention_logit_abs_max"),
                0,
                values["logit_forecast"]["limit"],
            ),
            lines(
                "Entropy",
                "Of the attention weights of a row, in nats, over the ranks.",
                "none",
                Query(f"min by (stat) ({entropy})", "{{stat}}, lowest rank"),
                Query(f"max by (stat) ({entropy})", "{{stat}}, highest rank"),
                width=6,
            ),
            lines(
                "Near ties",
                "Share of rows whose second largest score lies within 1/512 of the largest.",
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
        "What attention errs by against its fp64 reference, and its scores.",
        [run_variable(), rank_variable(), pass_variable()],
        [errors(values), scores(values)],
    )
