"""Problems with a known maximum of the likelihood, to try `alws.fit` on.

    problem = PROBLEMS["sleepstudy"](seed=0)
    key = jax.random.key(0)
    result = alws.fit(problem.start, problem.data, conditions=problem.conditions, key=key)
    problem.maximum - problem.log_likelihood(result.model)  # nats, over all data

The seed moves the start where a symmetry must be broken, and that of groups of rows, never the
data.
"""

from collections.abc import Callable

from known_maxima import (
    counts,
    gaussian,
    grouped,
    items,
    mixtures,
    others,
    sequences,
    tails,
    unusual,
)
from known_maxima.base import Exact, Problem

PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "faithful_waiting": mixtures.faithful_waiting,
    "faithful": mixtures.faithful,
    "penguins": mixtures.penguins,
    "iris": mixtures.iris,
    "deaths": mixtures.deaths,
    "scores": mixtures.scores,
    "survival": mixtures.survival,
    "lsat7_two_parameter": items.lsat7_two_parameter,
    "lsat7_one_parameter": items.lsat7_one_parameter,
    "lsat7_classes": items.lsat7_classes,
    "graded": items.graded,
    "articles_zero_inflated": counts.articles_zero_inflated,
    "articles_negative_binomial": counts.articles_negative_binomial,
    "seizures": counts.seizures,
    "discoveries": counts.discoveries,
    "families": counts.families,
    "shocks": counts.shocks,
    "detector": counts.detector,
    "dippers": counts.dippers,
    "sleepstudy": gaussian.sleepstudy,
    "replicates": gaussian.replicates,
    "walks": gaussian.walks,
    "breast_cancer_factors": gaussian.breast_cancer_factors,
    "breast_cancer_components": gaussian.breast_cancer_components,
    "diabetes_factors": gaussian.diabetes_factors,
    "diabetes_components": gaussian.diabetes_components,
    "digits_components": gaussian.digits_components,
    **{
        f"ladder_{entries}_{'on' if on_model else 'off'}": gaussian.ladder(
            entries, on_model=on_model
        )
        for entries in gaussian.LADDER
        for on_model in (True, False)
    },
    "cattle": grouped.cattle,
    "bacteria": grouped.bacteria,
    "contraception": grouped.contraception,
    "contraception_districts": grouped.contraception_districts,
    "seizure_rates": grouped.seizure_rates,
    "doctorates_zero_inflated": grouped.doctorates_zero_inflated,
    "doctorates_negative_binomial": grouped.doctorates_negative_binomial,
    "doctorates_inflated": grouped.doctorates_inflated,
    "sleepstudy_rows": grouped.sleepstudy_rows,
    "gas": tails.gas,
    "returns": tails.returns,
    "frontier": tails.frontier,
    "frailty": tails.frailty,
    "spending": others.spending,
    "arc": others.arc,
    "health": others.health,
    "bursts": others.bursts,
    "huron_level": sequences.huron_level,
    "huron_returning": sequences.huron_returning,
    "gas_seasons": sequences.gas_seasons,
    "several_short": sequences.several_short,
    "discoveries_2_states": sequences.discoveries_two,
    "discoveries_3_states": sequences.discoveries_three,
    "chain_300": sequences.chain_300,
    "chain_10000": sequences.chain_10000,
    "volatility": sequences.volatility,
    "ricker": sequences.ricker,
    "hunted": sequences.hunted,
    "epidemic": sequences.epidemic,
    "shares": unusual.shares,
    "choices": unusual.choices,
    "catches": unusual.catches,
    "visits": unusual.visits,
    "probits": unusual.probits,
    "loop": unusual.loop,
    "long_walk": unusual.long_walk,
    "coins": unusual.coins,
    "animals": unusual.animals,
    "directions": unusual.directions,
    "folded": unusual.folded,
}
"""Each problem by its name, as a function of a seed."""

__all__ = ["PROBLEMS", "Exact", "Problem"]
