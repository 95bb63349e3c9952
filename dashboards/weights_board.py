"""Movement of the weights of one run, and state of its optimizer."""

from board import Board, Row, run_variable
from panel import COUNT, NO_UNIT, RATIO, Query, by_step, layers, limited, lines, logarithmic, of_living, of_run
from rule import Values

MEAN, MAX = ',stat="mean"', ',stat="max"'


def moved(since: str) -> str:
    return of_run("layer_weight_wasserstein_distance", f',ref="{since}"')


def weights_row() -> Row:
    distance = of_run("weight_wasserstein_distance", ',stat="pooled"')
    return Row(
        "Weights",
        [
            logarithmic(
                lines(
                    "W1",
                    "Wasserstein distance of all weights of a node to the previous and to the first snapshot, in units"
                    " of the weights; of the node that moved most.",
                    NO_UNIT,
                    Query(f"max by (ref, interval) ({distance})", "{{ref}}, interval {{interval}}"),
                )
            ),
            logarithmic(
                lines(
                    "W1 of the tensor that moved most",
                    "The same of the single tensor that moved most, in units of the weights.",
                    NO_UNIT,
                    Query(
                        f"max by (ref, interval) ({of_run('weight_wasserstein_distance', MAX)})",
                        "{{ref}}, interval {{interval}}",
                    ),
                )
            ),
            logarithmic(
                lines(
                    "Change in a step",
                    "Mean absolute change of a weight in one optimizer step, in the unit of the weights, not relative"
                    " to them: of all weights, and of the tensor that changes most.",
                    NO_UNIT,
                    Query(f"max by (stat) ({of_run('weight_update_mean_abs')})", "{{stat}}"),
                )
            ),
            layers(
                "W1 by layer, since the interval before",
                "W1 to the previous snapshot of the layer's tensor that moved most, in units of the weights.",
                moved("previous"),
                NO_UNIT,
            ),
            layers(
                "W1 by layer, since the start",
                "W1 to the first snapshot of the layer's tensor that moved most, in units of the weights.",
                moved("initial"),
                NO_UNIT,
            ),
            lines(
                "Root mean square",
                "Root mean square of all weights of a node, in units of the weights.",
                NO_UNIT,
                Query(f"max({of_run('weight_rms')})", "largest"),
                Query(f"min({of_run('weight_rms')})", "smallest"),
            ),
            lines(
                "Not followed",
                "Number of due snapshots that were skipped, by reason, and of snapshots that the agent dropped.",
                COUNT,
                Query(f"sum by (reason) ({of_run('weight_skipped_total')})", "{{reason}}"),
                Query(f"sum({of_run('weight_snapshots_dropped_total')})", "dropped"),
            ),
            limited(
                lines(
                    "Replicas that differ",
                    "Snapshots in which a rank's weights differed from its replicas; the five ranks with most.",
                    COUNT,
                    Query(f"topk(5, sum by (rank) ({of_run('weight_checksum_mismatch_total')}))", "rank {{rank}}"),
                ),
                ("red", 1),
            ),
        ],
    )


def optimizer_row(values: Values) -> Row:
    return Row(
        "Optimizer",
        [
            by_step(
                "Update ratio, by step",
                "Norm of the change in one step divided by the norm of the weights: of all weights, and of the matrix"
                " with the largest ratio.",
                "percentunit",
                Query(f"max({of_run('optimizer_update_ratio', MEAN)})", "all"),
                Query(f"max({of_run('optimizer_update_ratio', MAX)})", "most"),
            ),
            by_step(
                "Staleness of Adam, by step",
                "Root of the mean of g²/v: mean over tensors, and largest. Above 2.3, steps are larger than intended.",
                RATIO,
                Query(f"max({of_run('optimizer_rms_staleness', MEAN)})", "all"),
                Query(f"max({of_run('optimizer_rms_staleness', MAX)})", "stalest"),
            ),
            lines(
                "Surprise and epsilon",
                "Share of values whose squared gradient is above 50 times Adam's second moment, and of values whose"
                " second moment has a root below eps.",
                "percentunit",
                Query(f"max({of_run('optimizer_surprise_ratio')})", "surprise"),
                Query(f"max({of_run('optimizer_epsilon_dominated_ratio')})", "epsilon"),
            ),
            lines(
                "Effective rank",
                "Rank of the change of a head's W_Q W_K^T between two snapshots: smallest and mean of the heads.",
                "suffix: dimensions",
                Query(f"min by (stat) ({of_run('attention_update_effective_rank')})", "effective, {{stat}}"),
                Query(f"min by (stat) ({of_run('attention_update_stable_rank')})", "stable, {{stat}}"),
            ),
            lines(
                "Size of the increment",
                "Frobenius norm of the same change (no unit): mean and largest head.",
                NO_UNIT,
                Query(f"max by (stat) ({of_run('attention_update_norm')})", "{{stat}}"),
            ),
            layers(
                "Effective rank by layer",
                "Smallest effective rank of the heads of a layer.",
                of_run("layer_attention_update_effective_rank"),
                "suffix: dimensions",
            ),
            lines(
                "Learning rate",
                "Learning rate of the last step (no unit).",
                NO_UNIT,
                Query(f"max({of_living('learning_rate')})", "learning rate"),
                width=12,
            ),
        ],
    )


def weights(values: Values) -> Board:
    return Board(
        "weights",
        "foreshock: weights and optimizer",
        "Movement of the weights, and state of the optimizer.",
        [run_variable()],
        [weights_row(), optimizer_row(values)],
    )
