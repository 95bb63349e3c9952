"""The dashboard "weights": movement of the weights of the selected run, and state of its optimizer. of_run() selects
the series of a metric in this run. lines() draws over time, by_step() over steps, layer_heatmap() layers over time. W1
is the Wasserstein distance of two snapshots of weights."""

from board import Board, Row, run_variable
from panel import (
    COUNT,
    NO_UNIT,
    RATIO,
    Query,
    by_step,
    layer_heatmap,
    learning_rate,
    lines,
    of_run,
    replicas_that_differ,
)
from rule import Values

# Further label matchers for of_run(). MEAN: over all tensors of a node; MAX: of the tensor with the largest value.
MEAN, MAX = ',stat="mean"', ',stat="max"'


def layer_distance(reference: str) -> str:
    """Selects the W1 distance of each layer from its "previous" or "initial" snapshot (`reference`)."""
    return of_run("layer_weight_wasserstein_distance", f',ref="{reference}"')


def weights_row() -> Row:
    distance = of_run("weight_wasserstein_distance", ',stat="pooled"')  # of all weight values of a node together
    most_moved = of_run("weight_wasserstein_distance", MAX)  # of the tensor that moved most
    return Row(
        "Weights",
        [
            lines(
                "W1",
                "W1 (Wasserstein distance): how far the distribution of all weight values of a node has moved since"
                " an earlier snapshot, in units of the weights; of the machine that moved most. previous: since the"
                " snapshot before; initial: since the first. interval: optimizer steps between two snapshots."
                " There is no fixed limit: the detector weight_shift warns if a tensor moves faster than before.",
                NO_UNIT,
                Query(f"max by (ref, interval) ({distance})", "{{ref}}, interval {{interval}}"),
                logarithmic=True,
            ),
            lines(
                "W1 of the tensor that moved most",
                "W1 as in the panel 'W1', of the single tensor that moved most, in units of the weights.",
                NO_UNIT,
                Query(f"max by (ref, interval) ({most_moved})", "{{ref}}, interval {{interval}}"),
                logarithmic=True,
            ),
            lines(
                "Change in a step",
                "Mean absolute change of a weight value in one optimizer step, in units of the weights (not divided by"
                " them). mean: over all weights; max: over the tensor that changes most. There is no fixed limit.",
                NO_UNIT,
                Query(f"max by (stat) ({of_run('weight_update_mean_abs')})", "{{stat}}"),
                logarithmic=True,
            ),
            layer_heatmap(
                "W1 by layer, since the snapshot before",
                "W1 between a tensor's last two snapshots, of the tensor of each layer that moved most, in units of the"
                " weights, over time. Look for a layer that moves faster than the others.",
                layer_distance("previous"),
                NO_UNIT,
            ),
            layer_heatmap(
                "W1 by layer, since the start",
                "W1 between a tensor's first and last snapshot, of the tensor of each layer that moved most, in units"
                " of the weights, over time. Look for a layer that has moved further than the others.",
                layer_distance("initial"),
                NO_UNIT,
            ),
            lines(
                "Root mean square",
                "Root mean square of all weight values of a node, in units of the weights: the node where it is"
                " largest, and the node where it is smallest. Nodes with data-parallel replicas are equal.",
                NO_UNIT,
                Query(f"max({of_run('weight_rms')})", "largest"),
                Query(f"min({of_run('weight_rms')})", "smallest"),
            ),
            lines(
                "Skipped snapshots",
                "Number of snapshots of weight tensors that were due and not taken, by reason, since the start of the"
                " run; dropped: taken, but the agent had no memory for them. budget (--max-slowdown) is a usual"
                " reason.",
                COUNT,
                Query(f"sum by (reason) ({of_run('weight_skipped_total')})", "{{reason}}"),
                Query(f"sum({of_run('weight_snapshots_dropped_total')})", "dropped"),
            ),
            replicas_that_differ(),
        ],
    )


def optimizer_row(values: Values) -> Row:
    limits = values["update_ratio"]
    return Row(
        "Optimizer",
        [
            by_step(
                "Update ratio, by step",
                "Ratio: L2 norm of the change of the weights in one optimizer step, divided by the L2 norm of the"
                " weights. all: of all tensors together; most: of the matrix with the largest ratio. An alert fires if"
                f" 'most' stays above {limits['at_least']:.0%} and above {limits['growth']} times its median of the"
                f" last {limits['window']}.",
                "percentunit",
                Query(f"max({of_run('optimizer_update_ratio', MEAN)})", "all"),
                Query(f"max({of_run('optimizer_update_ratio', MAX)})", "most"),
            ),
            by_step(
                "Staleness of Adam, by step",
                "Ratio: root of the mean of g²/max(v, eps²), with the gradient g after clipping, Adam's bias-corrected"
                " second moment v after the step, and Adam's eps. all: over all values of a node; stalest: over the"
                " tensor with the largest ratio. Near 1 while gradients keep their size. Above 2.3, steps are larger"
                " than intended. There is no alarm.",
                RATIO,
                Query(f"max({of_run('optimizer_rms_staleness', MEAN)})", "all"),
                Query(f"max({of_run('optimizer_rms_staleness', MAX)})", "stalest"),
            ),
            lines(
                "Surprise and epsilon",
                "Shares of all weight values. surprise: the squared gradient is more than 50 times Adam's second moment"
                " before the step. epsilon: the root of the second moment is below Adam's eps, so that eps sets the"
                " step. There is no alarm.",
                "percentunit",
                Query(f"max({of_run('optimizer_surprise_ratio')})", "surprise"),
                Query(f"max({of_run('optimizer_epsilon_dominated_ratio')})", "epsilon"),
            ),
            learning_rate(width=12),
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
