// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/link/framed_stream.h"

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "yeto/base/digest.h"
#include "yeto/base/format.h"

namespace yeto::sync {
namespace {

// A piece of this size is still in the core's cache when its CRC is computed.
constexpr std::size_t kPieceBytes = std::size_t{128} << 10;

// What a CHUNK frame has before its body, in one piece of memory that keeps the body alive.
struct ChunkHead {
  std::array<std::uint8_t, wire::kHeaderBytes + wire::kChunkPrefixBytes> bytes{};
  std::shared_ptr<const void> body;
};

}  // namespace

struct FramedStream::Impl : std::enable_shared_from_this<FramedStream::Impl> {
  Impl(FramedStream* of_handle, net::Loop& of_loop, std::unique_ptr<net::Connection> of_connection,
       wire::Direction way)
      : handle(of_handle), loop(of_loop), connection(std::move(of_connection)), incoming(way) {}

  void attach();
  void expect(std::uint32_t max_payload, Nanos timeout,
              std::function<void(Result<wire::Message>)> done);
  void read_header();
  void on_header();
  void on_payload();
  void deliver(wire::Message message);
  void read_prefix();
  void on_prefix();
  void ask_owner();
  void read_piece();
  void on_piece(std::size_t bytes);
  void end_chunk();
  void lose(Error error);
  void close();
  void drained();

  FramedStream* const handle;  // valid while open
  net::Loop& loop;
  std::unique_ptr<net::Connection> connection;
  const wire::Direction incoming;
  StreamOwner* owner = nullptr;
  bool open = true;
  // Nothing is read any more, but frames can still be sent: a refusal after a failed handshake,
  // what is queued after detach().
  bool silent = false;

  // Handshake: the one message that is awaited.
  std::function<void(Result<wire::Message>)> expected;
  std::uint32_t payload_limit = 0xffffffff;
  net::TimerId timer = 0;

  wire::FrameSequence sent;
  // The chunks among the frames that the kernel has not taken, oldest first.
  std::deque<std::pair<std::uint64_t, std::uint32_t>> queued_chunks;
  wire::FrameSequence received;
  std::array<std::uint8_t, wire::kHeaderBytes> header_bytes{};
  wire::FrameHeader header;
  Bytes payload;

  // The CHUNK being read.
  std::array<std::uint8_t, wire::kChunkPrefixBytes> prefix_bytes{};
  wire::ChunkPrefix prefix;
  bool is_parked = false;
  bool storing = false;
  MutableByteView target;  // while storing
  std::shared_ptr<void> keep_alive;
  std::uint32_t body_read = 0;  // of the payload after the prefix
  std::uint32_t crc = 0;
  Bytes scratch;  // for what is discarded
};

void FramedStream::Impl::attach() {
  connection->set_close_handler(
      [self = shared_from_this()](const Error& error) { self->lose(error); });
}

void FramedStream::Impl::expect(std::uint32_t max_payload, Nanos timeout,
                                std::function<void(Result<wire::Message>)> done) {
  YETO_CHECK(owner == nullptr && !expected, "expect_one_message() on a stream that is being read");
  YETO_CHECK(!silent, "expect_one_message() after a failed handshake");
  expected = std::move(done);
  payload_limit = max_payload;
  const auto self = shared_from_this();
  if (!open) {
    loop.post([self] {
      self->lose({ErrorCode::kClosed, "the stream is closed", self->connection->peer().text(), {}});
    });
    return;
  }
  timer = loop.after(timeout, [self, timeout] {
    self->lose({ErrorCode::kTimeout,
                strf("no message within {}", human_seconds(seconds(timeout))),
                self->connection->peer().text(),
                {}});
  });
  attach();
  read_header();
}

void FramedStream::Impl::read_header() {
  connection->read_exactly(header_bytes, [self = shared_from_this()] { self->on_header(); });
}

void FramedStream::Impl::on_header() {
  if (silent) {
    return;
  }
  auto parsed = wire::parse_header(header_bytes, incoming, payload_limit);
  if (!parsed) {
    return lose(parsed.error());
  }
  header = *parsed;
  if (const auto in_order = received.check(header.sequence); !in_order) {
    return lose(in_order.error());
  }
  if (header.type == wire::Type::kChunk) {
    if (expected) {
      return lose({ErrorCode::kProtocol, "CHUNK before the handshake is over", {}, {}});
    }
    return read_prefix();
  }
  payload.resize(header.payload_bytes);
  if (payload.empty()) {
    return on_payload();
  }
  connection->read_exactly(payload, [self = shared_from_this()] { self->on_payload(); });
}

void FramedStream::Impl::on_payload() {
  if (silent) {
    return;
  }
  if (const auto whole = wire::check_crc(header, crc32c(payload)); !whole) {
    return lose(whole.error());
  }
  auto message = wire::decode(header.type, incoming, payload);
  payload = Bytes();
  if (!message) {
    return lose(message.error());
  }
  deliver(std::move(*message));
}

void FramedStream::Impl::deliver(wire::Message message) {
  if (expected) {
    // Reading stops here: what follows belongs to whoever goes on with the stream.
    loop.cancel(std::exchange(timer, 0));
    payload_limit = 0xffffffff;
    const auto done = std::exchange(expected, nullptr);
    connection->set_close_handler(nullptr);
    return done(std::move(message));
  }
  owner->on_message(*handle, std::move(message));
  if (open) {
    read_header();
  }
}

void FramedStream::Impl::read_prefix() {
  if (header.payload_bytes < wire::kChunkPrefixBytes) {
    return lose({ErrorCode::kProtocol,
                 strf("CHUNK of {} payload bytes has no room for its prefix", header.payload_bytes),
                 {},
                 {}});
  }
  connection->read_exactly(prefix_bytes, [self = shared_from_this()] { self->on_prefix(); });
}

void FramedStream::Impl::on_prefix() {
  if (silent) {
    return;
  }
  const auto parsed = wire::parse_chunk_prefix(prefix_bytes, header.payload_bytes);
  if (!parsed) {
    return lose(parsed.error());
  }
  prefix = *parsed;
  crc = crc32c(prefix_bytes);
  body_read = 0;
  ask_owner();
}

void FramedStream::Impl::ask_owner() {
  ChunkTarget answer = owner->on_chunk(*handle, prefix);
  if (!open) {
    return;
  }
  is_parked = answer.way == ChunkTarget::Way::kPark;
  if (is_parked) {
    return;
  }
  if (answer.way == ChunkTarget::Way::kRefuse) {
    return lose({ErrorCode::kProtocol,
                 std::move(answer.reason),
                 strf("transfer {} chunk {}", prefix.transfer, prefix.index),
                 {}});
  }
  storing = answer.way == ChunkTarget::Way::kStore;
  YETO_CHECK(!storing || answer.target.size() == prefix.bytes, "a chunk's target has another size");
  target = storing ? answer.target : MutableByteView();
  keep_alive = storing ? std::move(answer.keep_alive) : nullptr;
  read_piece();
}

void FramedStream::Impl::read_piece() {
  const std::uint32_t body = header.payload_bytes - wire::kChunkPrefixBytes;
  if (body_read == body) {
    return end_chunk();
  }
  MutableByteView piece;
  if (body_read < target.size()) {
    piece = target.subspan(body_read);
  } else {
    // Discarded, or trailing bytes of a newer minor.
    scratch.resize(kPieceBytes);
    piece = MutableByteView(scratch).first(std::min<std::size_t>(kPieceBytes, body - body_read));
  }
  piece = piece.first(std::min(kPieceBytes, piece.size()));
  connection->read_some(piece, [self = shared_from_this(), piece](std::size_t bytes) {
    self->crc = crc32c(piece.first(bytes), self->crc);
    self->on_piece(bytes);
  });
}

void FramedStream::Impl::on_piece(std::size_t bytes) {
  body_read += static_cast<std::uint32_t>(bytes);
  if (!silent) {
    read_piece();
  }
}

void FramedStream::Impl::end_chunk() {
  if (const auto whole = wire::check_crc(header, crc); !whole) {
    return lose(whole.error());
  }
  const bool stored = std::exchange(storing, false);
  target = MutableByteView();
  keep_alive = nullptr;
  owner->on_chunk_read(*handle, prefix, stored);
  if (open) {
    read_header();
  }
}

void FramedStream::Impl::lose(Error error) {
  if (!open && !expected) {
    return;
  }
  if (error.where.empty()) {
    error.where = connection->peer().text();
  }
  StreamOwner* const told = std::exchange(owner, nullptr);
  const auto done = std::exchange(expected, nullptr);
  silent = done && (error.code == ErrorCode::kProtocol || error.code == ErrorCode::kTimeout);
  if (silent) {
    loop.cancel(std::exchange(timer, 0));
    connection->set_close_handler(nullptr);
  } else {
    close();
  }
  if (done) {
    done(fail(std::move(error)));
  } else if (told != nullptr) {
    told->on_stream_closed(*handle, error);
  }
}

void FramedStream::Impl::close() {
  open = false;
  owner = nullptr;
  loop.cancel(std::exchange(timer, 0));
  // Destroyed at the end of this function: it may own the objects that led here.
  const auto dropped = std::exchange(expected, nullptr);
  connection->close();
  target = MutableByteView();
  keep_alive = nullptr;
  is_parked = false;
}

void FramedStream::Impl::drained() {
  if (owner != nullptr) {
    owner->on_drained(*handle);
  }
}

FramedStream::FramedStream(net::Loop& loop, std::unique_ptr<net::Connection> connection,
                           wire::Direction incoming)
    : impl_(std::make_shared<Impl>(this, loop, std::move(connection), incoming)) {}

FramedStream::~FramedStream() { close(); }

void FramedStream::expect_one_message(std::uint32_t max_payload, Nanos timeout,
                                      std::function<void(Result<wire::Message>)> done) {
  impl_->expect(max_payload, timeout, std::move(done));
}

void FramedStream::start(StreamOwner* owner) {
  YETO_CHECK(impl_->owner == nullptr && !impl_->expected, "start() of a stream that is being read");
  YETO_CHECK(impl_->open && !impl_->silent, "start() of a closed stream");
  impl_->owner = owner;
  impl_->attach();
  impl_->read_header();
}

void FramedStream::send(const wire::Message& message) {
  if (!impl_->open) {
    return;
  }
  auto frame = std::make_shared<const Bytes>(wire::encode_frame(
      wire::type_of(message), impl_->sent.take(), wire::encode_message(message)));
  const ByteView part(*frame);
  impl_->connection->write({&part, 1}, frame, [self = impl_] { self->drained(); });
}

void FramedStream::send_chunk(std::uint64_t transfer, std::uint32_t index, ChunkBody body) {
  if (!impl_->open) {
    return;
  }
  auto head = std::make_shared<ChunkHead>();
  const std::span<std::uint8_t, wire::kHeaderBytes + wire::kChunkPrefixBytes> bytes(head->bytes);
  const auto prefix = bytes.last<wire::kChunkPrefixBytes>();
  const auto body_bytes = static_cast<std::uint32_t>(body.bytes.size());
  wire::encode_chunk_prefix({transfer, index, body_bytes}, prefix);
  wire::FrameHeader header;
  header.type = wire::Type::kChunk;
  header.payload_bytes = static_cast<std::uint32_t>(wire::kChunkPrefixBytes) + body_bytes;
  header.crc = crc32c_join(crc32c(prefix), body.crc, body_bytes);
  header.sequence = impl_->sent.take();
  wire::encode_header(header, bytes.first<wire::kHeaderBytes>());
  head->body = std::move(body.keep_alive);
  const ByteView parts[] = {head->bytes, body.bytes};
  impl_->queued_chunks.emplace_back(transfer, index);
  impl_->connection->write(parts, head, [self = impl_] {
    self->queued_chunks.pop_front();
    self->drained();
  });
}

std::vector<std::pair<std::uint64_t, std::uint32_t>> FramedStream::take_back() {
  const std::size_t frames = impl_->connection->take_back();
  std::deque<std::pair<std::uint64_t, std::uint32_t>>& queued = impl_->queued_chunks;
  YETO_CHECK(frames <= queued.size(), "take_back() on a stream that sends other frames");
  const auto first = queued.end() - static_cast<std::ptrdiff_t>(frames);
  std::vector<std::pair<std::uint64_t, std::uint32_t>> chunks(first, queued.end());
  queued.erase(first, queued.end());
  impl_->sent.give_back(frames);
  return chunks;
}

std::size_t FramedStream::unacknowledged_bytes() const {
  return impl_->connection->unacknowledged_bytes();
}
Nanos FramedStream::shortest_round_trip() const { return impl_->connection->shortest_round_trip(); }
void FramedStream::set_liveness(Nanos silence) { impl_->connection->set_liveness(silence); }
void FramedStream::set_unacknowledged_limit(std::size_t bytes) {
  impl_->connection->set_unacknowledged_limit(bytes);
}

std::optional<wire::ChunkPrefix> FramedStream::storing() const {
  return impl_->storing ? std::optional(impl_->prefix) : std::nullopt;
}

std::size_t FramedStream::queued_bytes() const { return impl_->connection->queued_bytes(); }

void FramedStream::unpark() {
  if (impl_->is_parked) {
    const auto self = impl_;
    self->ask_owner();
  }
}

bool FramedStream::parked() const { return impl_->is_parked; }

void FramedStream::discard_current(std::uint64_t transfer) {
  // keep_alive stays until the chunk ends: a read into the old target may be in progress.
  if (impl_->storing && impl_->prefix.transfer == transfer) {
    impl_->target = MutableByteView();
    impl_->storing = false;
  }
}

void FramedStream::detach() {
  impl_->owner = nullptr;
  impl_->silent = true;
  impl_->is_parked = false;
  impl_->connection->set_close_handler(nullptr);
}

void FramedStream::close() {
  const auto self = impl_;
  self->close();
}

void FramedStream::close_gracefully(Nanos limit, std::function<void()> done) {
  const auto self = impl_;
  self->connection->close_gracefully(limit, std::move(done));
  self->close();
}

bool FramedStream::is_open() const { return impl_->open; }
net::Address FramedStream::peer() const { return impl_->connection->peer(); }
bool FramedStream::is_secure() const { return impl_->connection->is_secure(); }
std::vector<std::string> FramedStream::peer_uris() const { return impl_->connection->peer_uris(); }
std::uint64_t FramedStream::bytes_in() const { return impl_->connection->bytes_in(); }
std::uint64_t FramedStream::bytes_out() const { return impl_->connection->bytes_out(); }

}  // namespace yeto::sync
