// SPDX-License-Identifier: Apache-2.0
// `yeto _finish`: asks the syncer of a run to finish. Used by the run's controller; not shown in
// the overview.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "verbs.h"
#include "yeto/base/files.h"
#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/net/connection.h"
#include "yeto/net/loop.h"
#include "yeto/net/tls.h"
#include "yeto/sync/link/framed_stream.h"
#include "yeto/sync/server/door.h"
#include "yeto/sync/server/records.h"
#include "yeto/sync/server/server.h"
#include "yeto/wire/codec.h"
#include "yeto/wire/identity.h"

namespace yeto::apps {
namespace {

constexpr Nanos kConnectLimit = 5 * kSecond;
constexpr Nanos kAnswerLimit = 15 * kSecond;
constexpr const char* kUsage =
    "usage: yeto _finish --endpoint FILE (--token-file FILE | --tls-cert FILE --tls-key FILE\n"
    "       --tls-ca FILE) [--insecure] [--mode finish|now] [--reason TEXT]\n";

struct FinishRequest {
  std::string endpoint;
  std::string token_file;
  net::TlsFiles tls;
  bool insecure = false;
  wire::FinishMode mode = wire::FinishMode::kFinish;
  std::string reason = "asked to finish";
};

Result<std::map<std::string, std::string>> read_values(int argc, char** argv) {
  static const std::set<std::string> kNames = {"--endpoint", "--token-file", "--tls-cert",
                                               "--tls-key",  "--tls-ca",     "--insecure",
                                               "--mode",     "--reason"};
  std::map<std::string, std::string> values;
  for (int i = 1; i < argc; ++i) {
    std::string name = argv[i];
    std::optional<std::string> value;
    if (name == "--insecure") {
      value = "true";
    } else if (const std::size_t at = name.find('='); at != std::string::npos) {
      value = name.substr(at + 1);
      name.resize(at);
    } else if (i + 1 < argc) {
      value = argv[++i];
    }
    if (!kNames.contains(name)) {
      return fail(ErrorCode::kFlagUnknown, strf("unknown flag {}", name), "yeto _finish", kUsage);
    }
    if (!value || !values.emplace(name, *value).second) {
      return fail(ErrorCode::kUsage, strf("{} needs one value, once", name), "yeto _finish",
                  kUsage);
    }
  }
  return values;
}

Result<FinishRequest> read_flags(int argc, char** argv) {
  YETO_ASSIGN(auto values, read_values(argc, argv));
  FinishRequest request;
  request.endpoint = values["--endpoint"];
  request.token_file = values["--token-file"];
  request.tls = {values["--tls-cert"], values["--tls-key"], values["--tls-ca"]};
  request.insecure = values["--insecure"] == "true";
  const bool one_kind = request.token_file.empty() ? request.tls.all() : !request.tls.any();
  if (request.endpoint.empty() || !one_kind) {
    return fail(ErrorCode::kUsage,
                "--endpoint is required, and either --token-file or the three TLS files",
                "yeto _finish", kUsage);
  }
  if (const std::string mode = values["--mode"]; mode == "now") {
    request.mode = wire::FinishMode::kNow;
  } else if (!mode.empty() && mode != "finish") {
    return fail(ErrorCode::kType, strf("--mode is finish or now, not '{}'", mode), "yeto _finish");
  }
  if (!values["--reason"].empty()) {
    request.reason = values["--reason"];
  }
  return request;
}

// One conversation as a controller: CHALLENGE → HELLO → WELCOME → FINISH → GOODBYE.
class Conversation {
 public:
  Conversation(sync::EndpointRecord endpoint, const sync::SessionKey& run_token,
               std::shared_ptr<const net::Tls> tls, const FinishRequest& request)
      : endpoint_(std::move(endpoint)),
        key_(sync::session_key(run_token, wire::Role::kController, wire::kNoSeat)),
        tls_(std::move(tls)),
        finish_{request.mode, request.reason} {}

  Status hold() {
    connecting_ = net::connect(
        loop_, {endpoint_.host, endpoint_.port}, kConnectLimit,
        [this](Result<std::unique_ptr<net::Connection>> connection) {
          on_connected(std::move(connection));
        },
        tls_);
    loop_.run();
    return outcome_;
  }

 private:
  void on_connected(Result<std::unique_ptr<net::Connection>> connection) {
    if (!connection) {
      end(fail(ErrorCode::kUnreachable, connection.error().what, connection.error().where,
               "the syncer may have ended; see its log"));
      return;
    }
    const std::vector<std::string> uris = (*connection)->peer_uris();
    const std::string syncer = wire::syncer_identity(endpoint_.run_id);
    if (tls_ && std::find(uris.begin(), uris.end(), syncer) == uris.end()) {
      end(fail(ErrorCode::kPermission, strf("the peer's certificate is not of {}", syncer),
               stream_peer(), "check that the endpoint file is of this run"));
      return;
    }
    stream_ = std::make_unique<sync::FramedStream>(loop_, std::move(*connection),
                                                   wire::Direction::kToLearner);
    expect_next();
  }
  void expect_next() {
    stream_->expect_one_message(
        wire::max_payload(wire::Type::kRefused, wire::Direction::kToLearner), kAnswerLimit,
        [this](Result<wire::Message> message) {
          if (!message) {
            on_lost(message.error());
          } else {
            on_message(*message);
          }
        });
  }
  void on_lost(const Error& error) {
    // A syncer with nothing left to do may close before its GOODBYE is read.
    const bool heard = asked_ && error.code == ErrorCode::kClosed;
    end(heard ? Status{Unit{}}
              : Status{fail(ErrorCode::kUnreachable, error.what, stream_peer(),
                            "the syncer did not take the request")});
  }
  void on_message(const wire::Message& message) {
    if (const auto* challenge = std::get_if<wire::Challenge>(&message)) {
      wire::Hello hello;
      hello.run_id = endpoint_.run_id;
      hello.role = wire::Role::kController;
      hello.incarnation = random_u64();
      hello.device = "controller";
      hello.proof = wire::make_proof(key_, challenge->nonce, hello);
      stream_->send(hello);
    } else if (std::holds_alternative<wire::Welcome>(message)) {
      asked_ = true;
      stream_->send(finish_);
    } else if (const auto* refused = std::get_if<wire::Refused>(&message)) {
      end(fail(ErrorCode::kRefused, "the syncer refused: " + refused->text, stream_peer()));
      return;
    } else if (std::holds_alternative<wire::Goodbye>(message)) {
      end(Unit{});
      return;
    }
    expect_next();
  }
  std::string stream_peer() const { return net::Address{endpoint_.host, endpoint_.port}.text(); }
  void end(Status outcome) {
    outcome_ = std::move(outcome);
    loop_.stop();
  }

  const sync::EndpointRecord endpoint_;
  const sync::SessionKey key_;
  const std::shared_ptr<const net::Tls> tls_;
  const wire::Finish finish_;
  net::Loop loop_;
  std::unique_ptr<net::Connecting> connecting_;
  std::unique_ptr<sync::FramedStream> stream_;
  bool asked_ = false;
  Status outcome_ = Unit{};
};

Status ask(const FinishRequest& request) {
  YETO_ASSIGN(const std::string text, read_text_file(request.endpoint, 1 << 16));
  YETO_ASSIGN(sync::EndpointRecord endpoint, sync::parse_endpoint(text, request.endpoint));
  const net::Address address{endpoint.host, endpoint.port};
  if (!request.tls.any() && !request.insecure && !net::is_loopback(address)) {
    return fail(ErrorCode::kPermission, "the syncer is on another machine, and there is no TLS",
                address.text(), "give --tls-cert, --tls-key and --tls-ca, or --insecure");
  }
  sync::SessionKey token{};
  std::shared_ptr<const net::Tls> tls;
  if (request.tls.any()) {
    YETO_ASSIGN(tls, net::Tls::load(request.tls));
  } else {
    YETO_ASSIGN(token, sync::read_token_file(request.token_file));
  }
  return Conversation(std::move(endpoint), token, std::move(tls), request).hold();
}

}  // namespace

int run_finish(int argc, char** argv) {
  const Result<FinishRequest> request = read_flags(argc, argv);
  const Status asked = request ? ask(*request) : Status{fail(request.error())};
  if (!asked) {
    std::fputs(asked.error().text().c_str(), stderr);
    return error_exit_code(asked.error().code);
  }
  return 0;
}

}  // namespace yeto::apps
