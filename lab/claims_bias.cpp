#include "lab/claims.h"
#include "lab/measured.h"

namespace foreshock::lab {

std::vector<Claim> claims_of_ties(Measured measured) {
  const auto bias_at = [&](const char* algorithm, const char* input) {
    return with_input(of(measured, algorithm), input).at(0);
  };
  const Measurement in_format = bias_at("flash2_reimplemented", "ties:2");
  const double fixed = bias_at("flash2_dynamic_max", "ties:2").bias_ulp.mean;
  const auto near = where(of(measured, "flash2_shipped"),
                          [](const Measurement& m) { return m.point.input.ends_with(":1.9e-3"); });
  // Two ties are left out: cast to the same value they are exact ties, which have a small bias of their own.
  const auto cast = where(of(measured, "flash2_cast_sum"), [](const Measurement& m) {
    return m.point.input.ends_with(":1.9e-3") && m.point.input != "ties:2:1.9e-3";
  });
  const auto beyond = where(of(measured, "flash2_shipped"),
                            [](const Measurement& m) { return m.point.input.ends_with(":4e-3"); });
  const Range biased = range_of(near, bias), unbiased = range_of(cast, bias),
              outside = range_of(beyond, bias);
  return {
      {kLowPrecision, "a repeated maximum biases the output away from zero when P . V is stored in bf16",
       text("two ties: %+.3f ulp, %.0f standard errors from 0", bias(in_format), in_format.bias_z),
       bias(in_format) > 0.1 && in_format.bias_z > 10},
      {kLowPrecision, "a maximum shifted where it is repeated removes the bias",
       text("two ties: %+.4f ulp", fixed), std::fabs(fixed) < 0.02},
      {kThisLab,
       "scores within 2^-9 of the maximum bias even the shipped kernel, whose P rounds to 1 while its sum "
       "does not",
       text("gap 1.9e-3, 2 to 16 near ties: %+.2f to %+.2f ulp", biased.low, biased.high),
       biased.within(0.1, 0.35)},
      {kThisLab, "a gap of 4e-3 is outside that window",
       text("%+.3f to %+.3f ulp", outside.low, outside.high), outside.within(-0.02, 0.02)},
      {kThisLab, "summing P after its cast removes it",
       text("4 to 16 near ties: %+.3f to %+.3f ulp", unbiased.low, unbiased.high),
       unbiased.within(-0.03, 0.03)},
  };
}

std::vector<Claim> claims_of_logits(Measured measured) {
  const std::vector<Measurement> plain = of(measured, "plain"), shipped = of(measured, "flash2_shipped");
  return {
      {"error model",
       "scores stored in bf16 have errors in proportion to their size: plain gets worse as logits grow",
       text("relative error %.1e to %.1e", l2(plain.front()), l2(plain.back())), is_rising(plain, l2)},
      {"error model", "scores in fp32 do not: a kernel's deviation says nothing about growing logits",
       text("relative error %.1e down to %.1e", l2(shipped.front()), l2(shipped.back())),
       is_falling(shipped, l2)},
  };
}

std::vector<Claim> claims_of_bias(Measured measured) {
  const auto at = [&](const char* algorithm, const char* input) {
    return with_input(of(measured, algorithm), input).at(0);
  };
  const Measurement flat = at("flash2_shipped", "flat"), flat_cast = at("flash2_cast_sum", "flat");
  const Measurement healthy = at("flash2_shipped", "normal");
  return {
      {kThisLab, "healthy inputs do not bias the shipped kernel", text("N(0,1): %+.4f ulp", bias(healthy)),
       std::fabs(bias(healthy)) < 0.02},
      {kThisLab, "flat scores do: every P is cast to 1, the sum is not",
       text("%+.3f ulp, z %.0f", bias(flat), flat.bias_z),
       bias(flat) > 0.1 && bias(flat) < 0.25 && flat.bias_z > 10},
      {kThisLab, "summing P after its cast removes that", text("%+.3f ulp", bias(flat_cast)),
       std::fabs(bias(flat_cast)) < 0.03},
  };
}

std::vector<Claim> claims_of_backward(Measured measured) {
  const auto drift = [&](const char* delta) {
    const auto found = where(of(measured, "flash2_shipped", "delta"), [=](const Measurement& m) {
      return m.point.delta == delta && m.point.input == "ties:4:1.9e-3";
    });
    return std::fabs(found.at(0).signed_sum.mean);
  };
  Range gradients;
  for (const char* tensor : {"grad_query", "grad_key", "grad_value"}) {
    const Range one = range_of(with_input(of(measured, "flash2_shipped", tensor), "normal"), max_ratio);
    gradients = {std::min(gradients.low, one.low), std::max(gradients.high, one.high)};
  }
  const double from_out = drift("out"), from_probabilities = drift("probabilities");
  return {
      {kLowPrecision, "delta from P instead of O removes its drift (section 3.2)",
       text("|sum of delta's error| %.2g from O, %.2g from P", from_out, from_probabilities),
       from_out > 10 * from_probabilities},
      {"flash-attention tests", "gradients are at most three times worse than plain's",
       text("%.2f to %.2f times", gradients.low, gradients.high), gradients.within(0, 3)},
  };
}

}  // namespace foreshock::lab
