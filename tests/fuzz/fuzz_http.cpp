// libFuzzer target: a request as the server reads it, from the bytes to the reply. The first byte says
// whether a token is wanted.
#include <cstdlib>
#include <fstream>
#include <utility>

// clang-format off
#include <boost/asio.hpp>
// clang-format on
#include <sys/stat.h>
#include <unistd.h>

#include <boost/beast/http.hpp>
#include <optional>

#include "exporters/http_routes.h"

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using foreshock::HttpReply;
using foreshock::HttpRoutes;

constexpr uint32_t kMaxHeadBytes = 8192;  // as in exporters/http_server.cpp
constexpr char kToken[] = "0123456789abcdef";

std::string_view text(beast::string_view view) { return {view.data(), view.size()}; }

HttpRoutes* routes(bool with_token) {
  static HttpRoutes open, closed;
  static const bool ready = [] {
    const std::string path = "/tmp/fuzz_http." + std::to_string(getpid());
    std::ofstream(path) << kToken;
    chmod(path.c_str(), 0600);
    std::string error;
    closed.require_token(foreshock::BearerToken::open(path, &error));
    std::atexit([] { unlink(("/tmp/fuzz_http." + std::to_string(getpid())).c_str()); });
    return error.empty();
  }();
  if (!ready) std::abort();
  return with_token ? &closed : &open;
}

std::shared_ptr<const foreshock::Published> published() {
  auto all = std::make_shared<foreshock::Published>();
  foreshock::Registry registry;
  registry.set(foreshock::Metric::kLoss, {"r", "0"}, 1.5);
  all->metrics = registry.snapshot();
  all->state_json = "{}";
  all->run_states = {{"ada/job", std::make_shared<const std::string>("{}")}};
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const bool with_token = data[0] % 2 != 0;
  http::request_parser<http::buffer_body> parser;
  parser.header_limit(kMaxHeadBytes);
  beast::error_code error;
  parser.put(asio::buffer(data + 1, size - 1), error);
  if (error || !parser.is_header_done()) return 0;
  const auto& head = parser.get();
  static const auto shown = published();
  const foreshock::HttpRequest request{
      text(head.method_string()), text(head[http::field::host]), text(head.target()),
      parser.chunked() || parser.content_length().value_or(0) > 0, text(head[http::field::authorization])};
  const HttpReply reply = routes(with_token)->answer(request, shown);
  if (reply.body == nullptr || reply.status < 200 || reply.status > 599) std::abort();
  // Who does not show the token gets no more than /healthz has.
  const bool shows_token =
      request.authorization.find(kToken) != std::string_view::npos ||
      (request.authorization.size() > 6 && (request.authorization[1] | 0x20) == 'a');  // Basic
  if (with_token && reply.status == 200 && !shows_token && *reply.body != "\n") std::abort();
  return 0;
}
