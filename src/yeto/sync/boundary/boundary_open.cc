// SPDX-License-Identifier: Apache-2.0
// Boundary::open: options and tensors are checked, the layout and the contract are made.
#include <algorithm>
#include <set>
#include <utility>

#include "yeto/base/digest.h"
#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/sync/boundary/boundary_impl.h"
#include "yeto/wire/identity.h"

namespace yeto::sync {
namespace {

constexpr std::size_t kMaxContractPairs = 64;
constexpr std::size_t kMaxContractName = 64;
constexpr std::size_t kMaxRunId = 64;

Result<std::vector<wire::ContractPair>> make_contract(const BoundaryOptions& options) {
  if (options.contract.size() > kMaxContractPairs) {
    return fail(ErrorCode::kRange, strf("a contract of {} pairs; at most {} are allowed",
                                        options.contract.size(), kMaxContractPairs));
  }
  std::vector<wire::ContractPair> pairs;
  std::set<std::string> names;
  for (const auto& [name, text] : options.contract) {
    if (name.empty() || name.size() > kMaxContractName || !names.insert(name).second) {
      return fail(ErrorCode::kUsage,
                  strf("contract name \"{}\" is empty, too long or given twice", name));
    }
    wire::ContractPair pair;
    pair.name = name;
    const Sha256 digest = sha256(as_bytes_view(text));
    std::copy_n(digest.begin(), pair.hash.size(), pair.hash.begin());
    pairs.push_back(std::move(pair));
  }
  // The same order on every island, however the caller collects them.
  std::sort(pairs.begin(), pairs.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return pairs;
}

Status check_ranges(const BoundaryOptions& options) {
  if (options.run_id.empty() || options.run_id.size() > kMaxRunId) {
    return fail(ErrorCode::kRange, strf("a run id has 1 to {} characters, \"{}\" has {}", kMaxRunId,
                                        options.run_id, options.run_id.size()));
  }
  if (options.seat && *options.seat == wire::kNoSeat) {
    return fail(ErrorCode::kRange, strf("seat {} is out of range", *options.seat));
  }
  if (options.streams > kMaxDataStreams) {
    return fail(ErrorCode::kRange,
                strf("{} data streams; 0 to {} are allowed", options.streams, kMaxDataStreams));
  }
  if (options.max_alone <= 0 || options.retry_first <= 0 ||
      options.retry_most < options.retry_first) {
    return fail(ErrorCode::kRange, "max_alone and the waits between attempts must be above 0");
  }
  return Unit{};
}

Status check_credentials(const BoundaryOptions& options) {
  if (options.tls.any() && !options.tls.all()) {
    return fail(ErrorCode::kUsage, "TLS needs three files: certificate, key and CA", {},
                "give --tls-cert, --tls-key and --tls-ca together");
  }
  if (options.tls.any() && (!options.token_file.empty() || options.insecure)) {
    return fail(
        ErrorCode::kConflict,
        strf("TLS and {} exclude each other", options.insecure ? "--insecure" : "a token file"), {},
        "with TLS the certificate says which seat this is");
  }
  if (!options.tls.any() && options.token_file.empty()) {
    return fail(ErrorCode::kUsage, "no token file and no certificate was given", {},
                "every island proves its seat: give the seat-<n>.key file of the run, or "
                "--tls-cert, --tls-key and --tls-ca");
  }
  return Unit{};
}

// The certificate must be of our seat, or every syncer would refuse it.
Status check_own_identity(const net::Tls& tls, const BoundaryOptions& options) {
  const std::string needed =
      wire::identity_of(options.run_id, wire::Role::kLearner, options.seat.value_or(wire::kNoSeat));
  const std::vector<std::string>& uris = tls.own_uris();
  if (std::find(uris.begin(), uris.end(), needed) == uris.end()) {
    return fail(ErrorCode::kPermission, strf("the certificate does not name {}", needed),
                options.tls.cert.string(),
                strf("give the certificate of this seat: subjectAltName = URI:{}", needed));
  }
  return Unit{};
}

Result<client::CourierOptions> make_courier_options(const BoundaryOptions& options) {
  client::CourierOptions courier;
  const client::Reach reach =
      options.tls.any() || options.insecure ? client::Reach::kAnywhere : client::Reach::kLoopback;
  YETO_ASSIGN(courier.endpoint, client::Endpoint::parse(options.syncer, options.run_id, reach));
  if (options.tls.any()) {
    YETO_ASSIGN(courier.tls, net::Tls::load(options.tls));
    YETO_TRY(check_own_identity(*courier.tls, options));
    courier.syncer_uri = wire::syncer_identity(options.run_id);
  } else {
    YETO_ASSIGN(courier.key, client::read_seat_key(options.token_file));
  }
  courier.retry_first = options.retry_first;
  courier.retry_most = options.retry_most;
  return courier;
}

std::vector<TensorSpec> specs_of(const std::vector<TensorView>& tensors) {
  std::vector<TensorSpec> specs;
  for (const TensorView& tensor : tensors) {
    TensorSpec spec;
    spec.name = tensor.name;
    spec.shape = tensor.shape;
    specs.push_back(std::move(spec));
  }
  return specs;
}

}  // namespace

Result<std::unique_ptr<Boundary>> Boundary::open(BoundaryOptions options,
                                                 std::vector<TensorView> tensors) {
  YETO_TRY(check_ranges(options));
  YETO_TRY(check_credentials(options));
  YETO_TRY(check_tensors(tensors));
  BoundaryParts parts;
  YETO_ASSIGN(parts.layout, make_layout(specs_of(tensors), options.layout));
  YETO_ASSIGN(parts.client.contract, make_contract(options));
  YETO_ASSIGN(parts.courier, make_courier_options(options));
  parts.client.run_id = options.run_id;
  parts.client.seat = options.seat.value_or(wire::kNoSeat);
  parts.client.incarnation = random_u64();
  parts.client.streams = options.streams;
  parts.client.device = options.device.substr(0, 256);
  parts.options = std::move(options);
  return std::unique_ptr<Boundary>(
      new Boundary(std::make_unique<Impl>(std::move(parts), std::move(tensors))));
}

}  // namespace yeto::sync
