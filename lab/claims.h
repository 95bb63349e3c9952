// What the papers say about each sweep, checked against its measurements. One function per sweep.
#ifndef FORESHOCK_LAB_CLAIMS_H_
#define FORESHOCK_LAB_CLAIMS_H_

#include <span>
#include <vector>

#include "lab/sweep.h"

namespace foreshock::lab {

std::vector<Claim> claims_of_fig3(std::span<const Measurement> measured);
std::vector<Claim> claims_of_fig4(std::span<const Measurement> measured);
std::vector<Claim> claims_of_fig5(std::span<const Measurement> measured);
std::vector<Claim> claims_of_fig6(std::span<const Measurement> measured);
std::vector<Claim> claims_of_ties(std::span<const Measurement> measured);
std::vector<Claim> claims_of_logits(std::span<const Measurement> measured);
std::vector<Claim> claims_of_bias(std::span<const Measurement> measured);
std::vector<Claim> claims_of_accumulators(std::span<const Measurement> measured);
std::vector<Claim> claims_of_units(std::span<const Measurement> measured);
std::vector<Claim> claims_of_backward(std::span<const Measurement> measured);
std::vector<Claim> claims_of_winograd(std::span<const Measurement> measured);
std::vector<Claim> claims_of_reductions(std::span<const Measurement> measured);
std::vector<Claim> claims_of_fp32(std::span<const Measurement> measured);

}  // namespace foreshock::lab

#endif  // FORESHOCK_LAB_CLAIMS_H_
