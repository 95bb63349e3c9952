// One connection of http_server.cpp, the only file that may include this: Boost takes long to compile.
#ifndef FORESHOCK_EXPORTERS_HTTP_SESSION_H_
#define FORESHOCK_EXPORTERS_HTTP_SESSION_H_

// Boost 1.74's Asio uses std::exchange without including <utility>, hence the order of these includes.
// clang-format off
#define BOOST_ASIO_DISABLE_FENCED_BLOCK  // one thread runs every handler; ThreadSanitizer cannot follow fences
#include <utility>
#include <boost/asio.hpp>
// clang-format on
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "exporters/http_routes.h"

namespace foreshock {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using StreamProtocol = asio::generic::stream_protocol;  // TCP or a Unix socket
using std::chrono::seconds;

constexpr uint32_t kMaxHeadBytes = 8192;
constexpr seconds kIdleTime(60);
constexpr seconds kHeadTime(1);  // from the first byte of a request head
constexpr seconds kReplyTime(4);
constexpr size_t kMaxReplyBytes = 64 << 20;

class HttpSession;
using HttpSessions = std::list<HttpSession*>;  // silent longest first

// What sessions need of the server; used by its thread only, but for `published`.
struct HttpShared {
  std::shared_ptr<const Published> current() {
    const std::lock_guard lock(mutex);
    return published;
  }

  std::mutex mutex;
  std::shared_ptr<const Published> published = std::make_shared<Published>();
  HttpRoutes routes;
  HttpSessions sessions;
};

// One connection: wait for a byte, read the head, answer, again. Lives as long as a handler refers to it.
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(StreamProtocol::socket socket, HttpShared* shared)
      : stream_(std::move(socket)), shared_(shared) {
    place_ = shared_->sessions.insert(shared_->sessions.end(), this);
  }
  ~HttpSession() { shared_->sessions.erase(place_); }

  void wait() {
    if (buffer_.size() > 0) return read_head();  // pipelined
    stream_.expires_after(kIdleTime);
    // An empty read of the stream, unlike socket().async_wait, obeys its timeout.
    stream_.async_read_some(buffer_.prepare(kMaxHeadBytes),
                            [self = shared_from_this()](beast::error_code error, size_t bytes) {
                              if (error) return;
                              self->buffer_.commit(bytes);
                              self->read_head();
                            });
  }

  // Pending operations end with an error, and the session with them.
  void close() { stream_.close(); }

 private:
  void read_head() {
    shared_->sessions.splice(shared_->sessions.end(), shared_->sessions, place_);
    parser_.emplace();
    parser_->header_limit(kMaxHeadBytes);
    stream_.expires_after(kHeadTime);
    http::async_read_header(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](beast::error_code error, size_t) { self->on_head(error); });
  }

  void on_head(beast::error_code error) {
    if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      return send(refusal(431, "the request head is too large"), false);
    }
    if (error == http::error::body_limit) return send(refusal(413, "no request body is taken"), false);
    const bool malformed =
        error && error.category() == http::make_error_code(http::error::end_of_stream).category();
    if (error == http::error::end_of_stream || error == http::error::partial_message) return;
    if (malformed) return send(refusal(400, "the request is not HTTP"), false);
    if (error) return;  // timeout, reset
    const auto& head = parser_->get();
    if (head.count(http::field::host) > 1) return send(refusal(400, "more than one Host"), false);
    if (head.count(http::field::authorization) > 1)
      return send(refusal(400, "more than one Authorization"), false);
    const HttpRequest request{text(head.method_string()), text(head[http::field::host]), text(head.target()),
                              parser_->chunked() || parser_->content_length().value_or(0) > 0,
                              text(head[http::field::authorization])};
    const HttpReply reply = shared_->routes.answer(request, shared_->current());
    const bool unread_body = request.has_body;
    send(reply, head.keep_alive() && !unread_body);
  }

  static std::string_view text(beast::string_view view) { return {view.data(), view.size()}; }

  void send(const HttpReply& reply, bool keep_alive) {
    if (reply.body->size() > kMaxReplyBytes)
      return send(refusal(503, "the answer would be larger than 64 MiB"), false);
    const bool head_only = parser_->is_header_done() && parser_->get().method() == http::verb::head;
    body_ = reply.body;
    response_.emplace();
    response_->result(static_cast<unsigned>(reply.status));
    response_->version(11);
    response_->keep_alive(keep_alive);
    response_->set(http::field::content_type,
                   beast::string_view(reply.content_type.data(), reply.content_type.size()));
    response_->set("Content-Security-Policy",
                   "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    response_->set("X-Content-Type-Options", "nosniff");
    response_->set("Cross-Origin-Resource-Policy", "same-origin");
    response_->set("Referrer-Policy", "no-referrer");
    response_->set(http::field::cache_control, "no-store");
    if (reply.status == 401)
      response_->set(http::field::www_authenticate, "Bearer realm=\"foreshock\", Basic realm=\"foreshock\"");
    if (reply.status == 405) response_->set(http::field::allow, "GET, HEAD");
    response_->content_length(body_->size());
    if (!head_only) response_->body() = {body_->data(), body_->size()};
    stream_.expires_after(kReplyTime);
    http::async_write(stream_, *response_,
                      [self = shared_from_this(), keep_alive](beast::error_code error, size_t) {
                        if (error) return;
                        keep_alive ? self->wait() : self->finish();
                      });
  }

  // Closing while bytes are unread would reset the connection and could destroy the reply on its way.
  void finish() {
    beast::error_code ignored;
    stream_.socket().shutdown(asio::socket_base::shutdown_send, ignored);
    stream_.expires_after(kHeadTime);
    discard();
  }

  void discard() {
    discarded_ += buffer_.size();
    buffer_.clear();
    if (discarded_ > 8 * kMaxHeadBytes) return;
    stream_.async_read_some(buffer_.prepare(kMaxHeadBytes),
                            [self = shared_from_this()](beast::error_code error, size_t bytes) {
                              if (error) return;
                              self->buffer_.commit(bytes);
                              self->discard();
                            });
  }

  beast::basic_stream<StreamProtocol> stream_;
  HttpShared* shared_;
  HttpSessions::iterator place_;
  beast::flat_buffer buffer_{2 * kMaxHeadBytes};
  std::optional<http::request_parser<http::buffer_body>> parser_;  // its body is never read
  std::optional<http::response<http::span_body<const char>>> response_;
  std::shared_ptr<const std::string> body_;  // of the response on its way
  size_t discarded_ = 0;
};

}  // namespace foreshock

#endif  // FORESHOCK_EXPORTERS_HTTP_SESSION_H_
