// SPDX-License-Identifier: Apache-2.0
// The checkpoint folder, which describes itself:
//   fragment-<p>-v<version>.safetensors  params (f32), momentum (f32, if any), public (anchor
//                                        dtype); the metadata says which slices of which tensors
//   layout.bin                           the run's layout in its canonical encoding
//   MANIFEST.json                        everything else, with the SHA-256 of the files above;
//                                        written last
//   TERM                                 the highest term a syncer began with
// A file that the manifest does not name is not part of the checkpoint. Functions work on any
// ObjectStore; a store has one writer.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "yeto/base/digest.h"
#include "yeto/base/result.h"
#include "yeto/merge/merge.h"
#include "yeto/store/object_store.h"
#include "yeto/sync/core/events.h"
#include "yeto/tensor/layout.h"

namespace yeto::sync::checkpoint {

inline constexpr std::string_view kSchema = "yeto.checkpoint/1";
inline constexpr std::string_view kManifestName = "MANIFEST.json";
inline constexpr std::string_view kLayoutName = "layout.bin";
inline constexpr std::string_view kTermName = "TERM";
inline constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{256} << 20;

struct FileEntry {
  std::string name;
  std::uint64_t bytes = 0;
  Sha256 sha256{};
  bool operator==(const FileEntry&) const = default;
};

// One merge as it stands on the tape. A manifest holds the last one of each fragment that changed
// since the manifest before, so that a line which was not yet on the tape when the syncer died can
// be written again.
struct CommittedPush {
  Seat seat = 0;
  std::uint64_t base_version = 0;
  std::uint64_t steps = 0;
  std::uint64_t tokens = 0;
  double norm = 0.0;
  bool operator==(const CommittedPush&) const = default;
};
struct CommitRecord {
  std::uint64_t round = 0;
  std::uint32_t fragment = 0;
  std::uint64_t version = 0;
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
  wire::Digest16 digest{};  // XXH3-128 of the public value
  std::vector<CommittedPush> pushes;
  std::vector<merge::SeatWeight> weights;
  bool operator==(const CommitRecord&) const = default;
};

// How far the tape had come when a checkpoint was ordered: every line of an earlier moment lies
// before.
struct TapePosition {
  std::uint64_t bytes = 0;
  std::uint64_t seq = 0;  // of the next line
  bool operator==(const TapePosition&) const = default;
};

struct Manifest {
  std::string run_id;
  CoreState state;
  CodecId push_codec = CodecId::kF32;
  CodecId broadcast_codec = CodecId::kF32;  // decides the dtype of the public values
  merge::OuterRule outer;
  merge::Correction correction = merge::Correction::kNone;
  merge::WeightRule weights = merge::WeightRule::kTokens2;
  std::optional<TapePosition> tape;   // none: no tape, or it could not keep up
  std::vector<CommitRecord> commits;  // ascending round
  Sha256 fingerprint{};               // of the layout
  FileEntry layout;
  std::vector<FileEntry> fragments;             // one per fragment, in order
  std::map<std::string, std::string> settings;  // the recipe of the run, as text
  bool operator==(const Manifest&) const = default;
};

// Deterministic, two-space indented, newline at the end.
std::string manifest_to_json(const Manifest& manifest);
// kDamaged for text that is no manifest, naming the field; kNotInBuild for another major of the
// schema.
Result<Manifest> manifest_from_json(std::string_view text, std::string_view where);

// Nothing if the store holds no manifest. Errors as above and kIo.
Result<std::optional<Manifest>> read_manifest(const store::ObjectStore& store);

// The term of a new life of the syncer: above every term in TERM and in the manifest and above
// `known`, durable when it returns. Call it before listening. kIo; kDamaged if TERM is not a
// number.
Result<std::uint64_t> raise_term(store::ObjectStore& store, std::uint64_t known = 0);

// One fragment to write; all is borrowed.
struct FragmentView {
  const Layout* layout = nullptr;
  std::uint32_t fragment = 0;
  std::uint64_t version = 0;
  ByteView values;    // f32
  ByteView momentum;  // f32; may be empty
  CodecId codec = CodecId::kF32;
  ByteView shown;  // the public value in the anchor dtype of `codec`
};
struct FragmentValues {
  Bytes values;
  Bytes momentum;
  Bytes shown;
};
std::string fragment_name(std::uint32_t fragment, std::uint64_t version);
Result<FileEntry> write_fragment(store::ObjectStore& store, std::string_view run_id,
                                 const FragmentView& fragment);
Result<FileEntry> write_layout(store::ObjectStore& store, const Layout& layout);
Status write_manifest(store::ObjectStore& store, const Manifest& manifest);
// Removes what neither the manifest nor `also` names (TERM stays), and leftovers of broken-off
// writes.
Status remove_unreferenced(store::ObjectStore& store, const Manifest& manifest,
                           const std::set<std::string>& also = {});

// kDamaged, naming the file, if it is missing, or its bytes are not those of the manifest.
Result<Layout> read_layout(const store::ObjectStore& store, const Manifest& manifest);
Result<FragmentValues> read_fragment(const store::ObjectStore& store, const Manifest& manifest,
                                     const Layout& layout, std::uint32_t fragment);

}  // namespace yeto::sync::checkpoint
