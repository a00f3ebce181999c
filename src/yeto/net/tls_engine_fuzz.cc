// SPDX-License-Identifier: Apache-2.0
// A TLS connection whose peer follows a script: both handshakes with bytes changed, left out or put
// in, and after a whole one the same with records. Nothing crashes, no peer is taken for a friend
// whose certificate did not arrive whole, and at most kMaxHandshakeBytes are taken from a stranger.
#include <memory>

#include "yeto/base/fuzz_testing.h"
#include "yeto/base/log.h"
#include "yeto/net/certificates_testing.h"
#include "yeto/net/tls_engine.h"

namespace {

using namespace yeto;
using namespace yeto::net;

struct Certificates {
  Certificates() {
    const TestCa ca(folder.path());
    const auto load = [&](const char* name, const char* uri) {
      auto tls = Tls::load(ca.issue(name, {uri}));
      YETO_CHECK(tls.has_value(), "certificates of a test");
      return *tls;
    };
    syncer = load("syncer", "yeto://run/syncer");
    learner = load("learner", "yeto://run/seat/0");
  }
  const fuzz::Folder folder;
  std::shared_ptr<const Tls> syncer;
  std::shared_ptr<const Tls> learner;
};

class Talk {
 public:
  Talk(fuzz::Input& in, const Certificates& certificates)
      : in_(in),
        accepting_{TlsEngine(certificates.syncer, TlsEngine::Side::kAccepts)},
        connecting_{TlsEngine(certificates.learner, TlsEngine::Side::kConnects)} {}

  void run() {
    constexpr int kTurns = 12;
    for (int turn = 0; turn < kTurns && (accepting_.alive || connecting_.alive); ++turn) {
      carry(connecting_, accepting_);
      carry(accepting_, connecting_);
    }
  }

 private:
  struct End {
    TlsEngine engine;
    bool alive = true;
    std::uint64_t fed = 0;
  };

  void carry(End& from, End& to) {
    if (from.alive) {
      advance(from);
    }
    Bytes bytes;
    from.engine.take_output(bytes);
    bend(bytes);
    if (!to.alive || bytes.empty()) {
      return;
    }
    to.fed += bytes.size();
    const bool before = to.engine.ready();
    to.alive = to.engine.feed(bytes).has_value();
    YETO_CHECK(!to.alive || before || to.fed <= TlsEngine::kMaxHandshakeBytes,
               "a stranger is listened to without end");
    if (to.alive) {
      advance(to);
    }
  }

  static void advance(End& end) {
    if (!end.engine.ready()) {
      const Result<bool> done = end.engine.handshake();
      end.alive = done.has_value();
      if (!done || !*done) {
        return;
      }
      YETO_CHECK(end.engine.peer_uris().size() == 1, "a peer without a name");
      static constexpr std::uint8_t kWords[] = {'h', 'e', 'l', 'l', 'o'};
      end.alive = end.engine.write(kWords).has_value();
    }
    std::uint8_t plain[64];
    for (Result<std::size_t> got = 1; end.alive && got && *got > 0;) {
      got = end.engine.read(plain);
      end.alive = got.has_value();
    }
  }

  // Mostly nothing, so that handshakes come far.
  void bend(Bytes& bytes) {
    switch (in_.below(8)) {
      case 0:
        for (int i = 0; i < 3 && !bytes.empty(); ++i) {
          bytes[in_.number<std::uint16_t>() % bytes.size()] ^= in_.byte();
        }
        return;
      case 1:
        bytes.resize(in_.number<std::uint16_t>() % (bytes.size() + 1));
        return;
      case 2: {
        const ByteView more = in_.take(in_.byte());
        bytes.insert(bytes.end(), more.begin(), more.end());
        return;
      }
      case 3: {
        const ByteView first = in_.take(in_.byte());
        bytes.insert(bytes.begin(), first.begin(), first.end());
        return;
      }
      case 4:
        bytes.resize(bytes.size() + in_.number<std::uint16_t>() % 20000U);
        return;
      default:
        return;
    }
  }

  fuzz::Input& in_;
  End accepting_;
  End connecting_;
};

}  // namespace

YETO_FUZZ_EXAMPLES(fuzz::any_script)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Certificates certificates;
  fuzz::Input in(data, size);
  Talk(in, certificates).run();
  return 0;
}
