"""How the weights of one run move, and how the optimizer is."""

from board import Board, Row, run_variable
from panel import Query, by_step, layers, limited, lines, logarithmic, of_living, of_run
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
                    "Wasserstein distance of all weights of a node to those one interval before, and to the first;"
                    " the node that moved most.",
                    "none",
                    Query(f"max by (ref, interval) ({distance})", "{{ref}}, interval {{interval}}"),
                )
            ),
            logarithmic(
                lines(
                    "W1 of the tensor that moved most",
                    "The same of one tensor.",
                    "none",
                    Query(
                        f"max by (ref, interval) ({of_run('weight_wasserstein_distance', MAX)})",
                        "{{ref}}, interval {{interval}}",
                    ),
                )
            ),
            logarithmic(
                lines(
                    "Change in a step",
                    "Mean magnitude of what one optimizer step changes: of all weights, and of the tensor"
                    " that changes most.",
                    "none",
                    Query(f"max by (stat) ({of_run('weight_update_mean_abs')})", "{{stat}}"),
                )
            ),
            layers(
                "W1 by layer, since the interval before",
                "Of the tensor of the layer that moved most.",
                moved("previous"),
            ),
            layers("W1 by layer, since the start", "Of the tensor of the layer that moved most.", moved("initial")),
            lines(
                "Root mean square",
                "Of all weights of a node.",
                "none",
                Query(f"max({of_run('weight_rms')})", "largest"),
                Query(f"min({of_run('weight_rms')})", "smallest"),
            ),
            lines(
                "Not followed",
                "Tensors whose turn it was and that were left out, by reason, and snapshots dropped.",
                "none",
                Query(f"sum by (reason) ({of_run('weight_skipped_total')})", "{{reason}}"),
                Query(f"sum({of_run('weight_snapshots_dropped_total')})", "dropped"),
            ),
            limited(
                lines(
                    "Replicas that differ",
                    "Snapshots in which a rank's bits differed from those of its replicas; the five ranks with most.",
                    "none",
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
                "Norm of what one step changed over the norm of the weights: of all, and of the matrix"
                " that changed most.",
                "percentunit",
                Query(f"max({of_run('optimizer_update_ratio', MEAN)})", "all"),
                Query(f"max({of_run('optimizer_update_ratio', MAX)})", "most"),
            ),
            by_step(
                "Staleness of Adam, by step",
                "Root of the mean of g²/v: of all tensors, and of the stalest. Above 2.3 steps are larger than meant.",
                "none",
                Query(f"max({of_run('optimizer_rms_staleness', MEAN)})", "all"),
                Query(f"max({of_run('optimizer_rms_staleness', MAX)})", "stalest"),
            ),
            lines(
                "Surprise and epsilon",
                "Share of values whose squared gradient is beyond 50 times the second moment, and of"
                " those whose second moment's root is below eps.",
                "percentunit",
                Query(f"max({of_run('optimizer_surprise_ratio')})", "surprise"),
                Query(f"max({of_run('optimizer_epsilon_dominated_ratio')})", "epsilon"),
            ),
            lines(
                "Effective rank",
                "Of the increment of a head's W_Q W_K^T between two snapshots: smallest and mean.",
                "none",
                Query(f"min by (stat) ({of_run('attention_update_effective_rank')})", "effective, {{stat}}"),
                Query(f"min by (stat) ({of_run('attention_update_stable_rank')})", "stable, {{stat}}"),
            ),
            lines(
                "Size of the increment",
                "Frobenius norm of that increment: mean and largest head.",
                "none",
                Query(f"max by (stat) ({of_run('attention_update_norm')})", "{{stat}}"),
            ),
            layers(
                "Effective rank by layer",
                "Smallest of the heads of a layer.",
                of_run("layer_attention_update_effective_rank"),
            ),
            lines(
                "Learning rate",
                "Of the last step.",
                "none",
                Query(f"max({of_living('learning_rate')})", "learning rate"),
                width=12,
            ),
        ],
    )


def weights(values: Values) -> Board:
    return Board(
        "weights",
        "foreshock: weights and optimizer",
        "How weights move, and how the optimizer is.",
        [run_variable()],
        [weights_row(), optimizer_row(values)],
    )
