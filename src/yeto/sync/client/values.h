// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the step boundary on flat f32 vectors of one fragment. Every operation is
// rounded to f32 on its own (compiled with -ffp-contract=off), so that all islands get the same
// bits. Pure functions, thread-safe; all spans of a call have the same length and do not overlap
// unless said. θ̂ is the public value (the new anchor), P the snapshot the last delta was taken of.
#pragma once

#include <span>

namespace yeto::sync::client {

// Outer gradient: out ← reference − snapshot.
void outer_gradient(std::span<const float> reference, std::span<const float> snapshot,
                    std::span<float> out);

// local ← θ̂ + α·(P − θ̂) + (local − P): the share α of what was pushed, and all work since P. Where
// nothing was done since P and α is 0 the result is θ̂ to the bit (also its −0).
void apply_after_push(std::span<const float> theta, std::span<const float> pushed, float alpha,
                      std::span<float> local);

// local ← θ̂ + α·(local − θ̂); with α 0 it is θ̂ to the bit.
void apply_without_push(std::span<const float> theta, float alpha, std::span<float> local);

// What the next delta is taken against under the blended reference: out ← θ̂ + α·(kept − θ̂), where
// `kept` is P after a push and the local values before the application without one.
void blended_reference(std::span<const float> theta, std::span<const float> kept, float alpha,
                       std::span<float> out);

bool all_finite(std::span<const float> values);
// Σ x², in f64.
double square_sum(std::span<const float> values);

}  // namespace yeto::sync::client
