// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/boundary/residuals.h"

#include <cmath>
#include <utility>

#include "yeto/tensor/bf16.h"

namespace yeto::sync::client {

FlatValues Residuals::lend(std::uint32_t fragment, Ticket ticket) {
  MutexLock lock(mutex_);
  FlatValues taken = std::exchange(fragments_[fragment].residual, {});
  lent_[ticket] = Lent{fragment, taken, {}};
  return taken;
}

void Residuals::rounded(Ticket ticket, FlatValues error, double norm) {
  MutexLock lock(mutex_);
  const auto found = lent_.find(ticket);
  if (found != lent_.end()) {
    found->second.error = std::move(error);
    fragments_[found->second.fragment].square_norm = norm * norm;
  }
}

void Residuals::settle(Ticket ticket, bool kept) {
  MutexLock lock(mutex_);
  const auto found = lent_.find(ticket);
  if (found == lent_.end()) {
    return;
  }
  const Lent lent = std::move(found->second);
  lent_.erase(found);
  add(fragments_[lent.fragment].residual, kept ? lent.error : lent.taken);
}

void Residuals::clear(std::uint32_t fragment) {
  MutexLock lock(mutex_);
  fragments_[fragment] = Fragment{};
  std::erase_if(lent_, [&](const auto& entry) { return entry.second.fragment == fragment; });
}

double Residuals::norm() const {
  MutexLock lock(mutex_);
  double sum = 0.0;
  for (const Fragment& fragment : fragments_) {
    sum += fragment.square_norm;
  }
  return std::sqrt(sum);
}

// Two pushes of one fragment are seldom under way at once, so the sum is seldom made.
void Residuals::add(FlatValues& to, const FlatValues& more) const {
  if (!more) {
    return;
  }
  if (!to) {
    to = more;
    return;
  }
  const auto memory = pool_.take(more.bytes().size());
  const std::span<std::uint16_t> sum = as_bf16(*memory);
  for (std::size_t i = 0; i < sum.size(); ++i) {
    sum[i] = bf16_from_f32(f32_from_bf16(to.bf16()[i]) + f32_from_bf16(more.bf16()[i]));
  }
  to = FlatValues(memory, DType::kBf16);
}

}  // namespace yeto::sync::client
