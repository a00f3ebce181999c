// SPDX-License-Identifier: Apache-2.0
#include "yeto/net/address.h"

#include <asio/ip/address.hpp>
#include <charconv>

#include "yeto/base/format.h"

namespace yeto::net {
namespace {

constexpr std::string_view kForm = "write host:port, for IPv6 [::1]:port";

tl::unexpected<Error> wrong(std::string_view text, std::string what, std::size_t position) {
  return fail(ErrorCode::kUsage, std::move(what), strf("\"{}\" position {}", text, position + 1),
              std::string(kForm));
}

}  // namespace

std::string Address::text() const {
  return host.find(':') == std::string::npos ? strf("{}:{}", host, port)
                                             : strf("[{}]:{}", host, port);
}

Result<Address> parse_address(std::string_view text) {
  std::string_view host;
  std::size_t colon = 0;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) {
      return wrong(text, "the bracket of an IPv6 address is not closed", 0);
    }
    host = text.substr(1, end - 1);
    colon = end + 1;
    asio::error_code ec;
    asio::ip::make_address_v6(std::string(host), ec);
    if (ec) {
      return wrong(text, "not an IPv6 address in the brackets", 1);
    }
  } else {
    colon = std::min(text.find(':'), text.size());
    host = text.substr(0, colon);
    if (text.find(':', colon + 1) != std::string_view::npos) {
      return wrong(text, "more than one colon outside brackets", colon);
    }
  }
  if (host.empty()) {
    return wrong(text, "the host is missing", 0);
  }
  if (colon >= text.size() || text[colon] != ':') {
    return wrong(text, "the port is missing", colon);
  }
  const std::string_view digits = text.substr(colon + 1);
  std::uint16_t port = 0;
  const auto [end, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (digits.empty() || ec != std::errc() || end != digits.data() + digits.size()) {
    return wrong(text, "the port is not a number from 0 to 65535", colon + 1);
  }
  return Address{std::string(host), port};
}

bool is_loopback(const Address& address) {
  if (address.host == "localhost") {
    return true;
  }
  asio::error_code ec;
  const asio::ip::address ip = asio::ip::make_address(address.host, ec);
  if (ec) {
    return false;
  }
  if (ip.is_v6() && ip.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, ip.to_v6()).is_loopback();
  }
  return ip.is_loopback();
}

}  // namespace yeto::net
