// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/jobs/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>

#include "yeto/base/format.h"
#include "yeto/codec/codec.h"
#include "yeto/sync/jobs/manifest_json.h"
#include "yeto/weights/safetensors.h"

namespace yeto::sync::checkpoint {
namespace {

constexpr std::uint64_t kMaxTermBytes = 64;

std::string file_in(const store::ObjectStore& store, std::string_view name) {
  return strf("{} in {}", name, store.place());
}

tl::unexpected<Error> damaged(const store::ObjectStore& store, std::string_view name,
                              std::string what) {
  return fail(ErrorCode::kDamaged, "the checkpoint is damaged: " + std::move(what),
              file_in(store, name),
              "take the folder from a backup, or start a new run in another folder");
}

// A file's bytes if they are those of the manifest.
Result<Bytes> read_file(const store::ObjectStore& store, const FileEntry& file) {
  Result<Bytes> bytes = store.get(file.name, file.bytes);
  if (!bytes) {
    const ErrorCode code = bytes.error().code;
    if (code == ErrorCode::kNotFound || code == ErrorCode::kData) {
      return damaged(store, file.name,
                     code == ErrorCode::kNotFound ? "a file is missing"
                                                  : "a file is larger than the manifest says");
    }
    return bytes;
  }
  if (bytes->size() != file.bytes) {
    return damaged(store, file.name,
                   strf("a file has {} bytes, the manifest says {}", bytes->size(), file.bytes));
  }
  if (sha256(*bytes) != file.sha256) {
    return damaged(store, file.name, "the SHA-256 of a file is not that of the manifest");
  }
  return bytes;
}

Result<FileEntry> put_file(store::ObjectStore& store, std::string name,
                           std::span<const ByteView> parts) {
  FileEntry entry;
  Sha256Stream digest;
  for (const ByteView part : parts) {
    digest.update(part);
    entry.bytes += part.size();
  }
  entry.sha256 = digest.finish();
  entry.name = std::move(name);
  YETO_TRY(store.put(entry.name, parts, store::PutMode::kReplace));
  return entry;
}

weights::Metadata metadata_of(std::string_view run_id, const FragmentView& fragment) {
  return {{"schema", "yeto.fragment/1"},
          {"run_id", std::string(run_id)},
          {"fragment", strf("{}", fragment.fragment)},
          {"version", strf("{}", fragment.version)},
          {"codec", std::string(codec::codec_name(fragment.codec))},
          {"pieces", pieces_to_json(*fragment.layout, fragment.fragment)}};
}

// A tensor of a fragment's file and where it goes.
struct Wanted {
  std::string_view name;
  DType dtype;
  Bytes* target;
};

// Except under q4, where it also depends on all values before, the public value follows from the
// master values; so it shows whether both belong together.
bool public_follows(CodecId codec, const FragmentValues& fragment) {
  switch (codec) {
    case CodecId::kF32:
      return fragment.shown == fragment.values;
    case CodecId::kBf16: {
      std::vector<float> values(fragment.values.size() / sizeof(float));
      std::memcpy(values.data(), fragment.values.data(), fragment.values.size());
      Bytes image(fragment.shown.size());
      return codec::encode(codec, values, image).has_value() && image == fragment.shown;
    }
    case CodecId::kQ4:
      return true;
  }
  return false;
}

std::optional<std::uint64_t> parse_term(std::string_view text) {
  if (!text.empty() && text.back() == '\n') {
    text.remove_suffix(1);
  }
  std::uint64_t term = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), term);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return term;
}

}  // namespace

Result<std::optional<Manifest>> read_manifest(const store::ObjectStore& store) {
  Result<Bytes> bytes = store.get(kManifestName, kMaxManifestBytes);
  if (!bytes) {
    if (bytes.error().code == ErrorCode::kNotFound) {
      return std::optional<Manifest>();
    }
    return fail(std::move(bytes).error());
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  YETO_ASSIGN(Manifest manifest, manifest_from_json(text, file_in(store, kManifestName)));
  return std::optional<Manifest>(std::move(manifest));
}

Result<std::uint64_t> raise_term(store::ObjectStore& store, std::uint64_t known) {
  std::uint64_t before = known;
  YETO_ASSIGN(const std::optional<Manifest> manifest, read_manifest(store));
  if (manifest) {
    before = std::max(before, manifest->state.term);
  }
  const Result<Bytes> bytes = store.get(kTermName, kMaxTermBytes);
  if (bytes) {
    const auto term = parse_term({reinterpret_cast<const char*>(bytes->data()), bytes->size()});
    if (!term) {
      return damaged(store, kTermName, "the term is not a number");
    }
    before = std::max(before, *term);
  } else if (bytes.error().code != ErrorCode::kNotFound) {
    return fail(bytes.error());
  }
  const std::uint64_t term = before + 1;
  YETO_TRY(store.put(kTermName, strf("{}\n", term), store::PutMode::kReplace));
  return term;
}

std::string fragment_name(std::uint32_t fragment, std::uint64_t version) {
  return strf("fragment-{}-v{}.safetensors", fragment, version);
}

Result<FileEntry> write_fragment(store::ObjectStore& store, std::string_view run_id,
                                 const FragmentView& fragment) {
  const std::vector<std::uint64_t> shape{fragment.values.size() / sizeof(float)};
  std::vector<weights::TensorOut> tensors{
      {"params", DType::kF32, shape, fragment.values},
      {"public", codec::anchor_dtype(fragment.codec), shape, fragment.shown}};
  if (!fragment.momentum.empty()) {
    tensors.push_back({"momentum", DType::kF32, shape, fragment.momentum});
  }
  YETO_ASSIGN(const weights::FileParts file,
              weights::layout_file(tensors, metadata_of(run_id, fragment)));
  std::vector<ByteView> parts{file.head};
  parts.insert(parts.end(), file.tensors.begin(), file.tensors.end());
  return put_file(store, fragment_name(fragment.fragment, fragment.version), parts);
}

Result<FileEntry> write_layout(store::ObjectStore& store, const Layout& layout) {
  const Bytes bytes = layout.encode();
  const ByteView part = bytes;
  return put_file(store, std::string(kLayoutName), {&part, 1});
}

Status write_manifest(store::ObjectStore& store, const Manifest& manifest) {
  YETO_TRY(store.put(kManifestName, manifest_to_json(manifest), store::PutMode::kReplace));
  return Unit{};
}

Status remove_unreferenced(store::ObjectStore& store, const Manifest& manifest,
                           const std::set<std::string>& also) {
  std::set<std::string> keep = also;
  keep.insert({std::string(kManifestName), std::string(kTermName), manifest.layout.name});
  for (const FileEntry& file : manifest.fragments) {
    keep.insert(file.name);
  }
  YETO_ASSIGN(const std::vector<std::string> names, store.list());
  for (const std::string& name : names) {
    // Only what this room wrote: other files of the folder are none of its business.
    if (name.starts_with("fragment-") && name.ends_with(".safetensors") && !keep.contains(name)) {
      YETO_TRY(store.remove(name));
    }
  }
  return store.remove_unfinished();
}

Result<Layout> read_layout(const store::ObjectStore& store, const Manifest& manifest) {
  YETO_ASSIGN(const Bytes bytes, read_file(store, manifest.layout));
  Result<Layout> layout = Layout::decode(bytes);
  if (!layout) {
    return damaged(store, manifest.layout.name, layout.error().what);
  }
  if (layout->fingerprint() != manifest.fingerprint ||
      layout->fragments.size() != manifest.fragments.size()) {
    return damaged(store, manifest.layout.name, "the layout is not that of the manifest");
  }
  return layout;
}

Result<FragmentValues> read_fragment(const store::ObjectStore& store, const Manifest& manifest,
                                     const Layout& layout, std::uint32_t fragment) {
  const FileEntry& entry = manifest.fragments.at(fragment);
  const std::uint64_t values = layout.fragments.at(fragment).values;
  YETO_ASSIGN(const Bytes bytes, read_file(store, entry));
  const auto file = weights::SafetensorsView::parse(bytes, entry.name);
  if (!file) {
    return damaged(store, entry.name, file.error().what);
  }
  FragmentValues out;
  const bool with_momentum = manifest.outer.keeps_momentum();
  const DType shown = codec::anchor_dtype(manifest.broadcast_codec);
  for (const auto& [name, dtype, target] :
       {Wanted{"params", DType::kF32, &out.values}, Wanted{"public", shown, &out.shown},
        Wanted{"momentum", DType::kF32, &out.momentum}}) {
    if (name == "momentum" && !with_momentum) {
      continue;
    }
    const weights::TensorInfo* info = file->find(name);
    if (info == nullptr || info->dtype != dtype ||
        file->bytes(*info).size() != values * dtype_bytes(dtype)) {
      return damaged(
          store, entry.name,
          strf("its tensor {} is missing or not {} values of {}", name, values, dtype_name(dtype)));
    }
    const ByteView bytes_of = file->bytes(*info);
    target->assign(bytes_of.begin(), bytes_of.end());
  }
  if (!public_follows(manifest.broadcast_codec, out)) {
    return damaged(store, entry.name, "its public value is not that of its params");
  }
  return out;
}

}  // namespace yeto::sync::checkpoint
