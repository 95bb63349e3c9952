// The only file that knows Boost. Boost 1.74's Asio uses std::exchange without including <utility>, hence the
// order of the first two includes.
// clang-format off
#include <utility>
#include <boost/asio.hpp>
// clang-format on
#include "exporters/http_server.h"

#include <pthread.h>

#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <csignal>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

#include "exporters/http_routes.h"

namespace foreshock {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kMaxConnections = 256;
constexpr int kPortsTried = 100;
constexpr uint32_t kMaxHeadBytes = 8192;
constexpr seconds kIdleTime(60);
constexpr seconds kHeadTime(1);  // from the first byte of a request head
constexpr seconds kReplyTime(4);
constexpr milliseconds kAcceptPause(100);  // after a failed accept, e.g. no file descriptor left

class Session;
using Sessions = std::list<Session*>;  // silent longest first

// What sessions need of the server; used by its thread only, but for `published`.
struct Shared {
  std::shared_ptr<const Published> current() {
    const std::lock_guard lock(mutex);
    return published;
  }

  std::mutex mutex;
  std::shared_ptr<const Published> published = std::make_shared<Published>();
  HttpRoutes routes;
  Sessions sessions;
};

// One connection: wait for a byte, read the head, answer, again. Lives as long as a handler refers to it.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, Shared* shared) : stream_(std::move(socket)), shared_(shared) {
    place_ = shared_->sessions.insert(shared_->sessions.end(), this);
  }
  ~Session() { shared_->sessions.erase(place_); }

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
    const HttpRequest request{text(head.method_string()), text(head[http::field::host]), text(head.target()),
                              parser_->chunked() || parser_->content_length().value_or(0) > 0};
    const HttpReply reply = shared_->routes.answer(request, *shared_->current());
    const bool unread_body = request.has_body;
    send(reply, head.keep_alive() && !unread_body);
  }

  static std::string_view text(beast::string_view view) { return {view.data(), view.size()}; }

  void send(const HttpReply& reply, bool keep_alive) {
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
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
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

  beast::tcp_stream stream_;
  Shared* shared_;
  Sessions::iterator place_;
  beast::flat_buffer buffer_{2 * kMaxHeadBytes};
  std::optional<http::request_parser<http::buffer_body>> parser_;  // its body is never read
  std::optional<http::response<http::span_body<const char>>> response_;
  std::shared_ptr<const std::string> body_;  // of the response on its way
  size_t discarded_ = 0;
};

bool is_refused(const std::string& address, std::string* error) {
  if (address == "127.0.0.1" || address == "::1") return false;
  *error =
      "cannot listen on '" + address + "': only 127.0.0.1 and ::1 are allowed; use an SSH tunnel or a proxy";
  return true;
}

}  // namespace

struct HttpServer::Impl {
  Shared shared;
  // Destroyed before `shared`: it owns the handlers, and they the sessions.
  std::unique_ptr<asio::io_context> context;
  std::optional<tcp::acceptor> acceptor;
  std::optional<asio::steady_timer> pause;
  std::thread thread;
  std::string address;
  int port = 0;

  beast::error_code listen(const std::string& wanted_address, int wanted_port);
  void accept();
  void on_accept(beast::error_code error, tcp::socket socket);
  void close_oldest();
  void serve();
};

beast::error_code HttpServer::Impl::listen(const std::string& wanted_address, int wanted_port) {
  beast::error_code error;
  const tcp::endpoint endpoint(asio::ip::make_address(wanted_address), static_cast<uint16_t>(wanted_port));
  acceptor.emplace(*context);
  acceptor->open(endpoint.protocol(), error);
  if (!error) acceptor->set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor->bind(endpoint, error);
  if (!error) acceptor->listen(asio::socket_base::max_listen_connections, error);
  if (!error) port = acceptor->local_endpoint(error).port();
  return error;
}

void HttpServer::Impl::accept() {
  acceptor->async_accept(
      [this](beast::error_code error, tcp::socket socket) { on_accept(error, std::move(socket)); });
}

void HttpServer::Impl::on_accept(beast::error_code error, tcp::socket socket) {
  if (error == asio::error::operation_aborted) return;
  if (error) {
    close_oldest();
    pause->expires_after(kAcceptPause);
    pause->async_wait([this](beast::error_code cancelled) {
      if (!cancelled) accept();
    });
    return;
  }
  if (shared.sessions.size() >= kMaxConnections) close_oldest();
  std::make_shared<Session>(std::move(socket), &shared)->wait();
  accept();
}

void HttpServer::Impl::close_oldest() {
  if (shared.sessions.empty()) return;
  Session* oldest = shared.sessions.front();
  // It ends only with its handlers: out of the way, so that the next one is another.
  shared.sessions.splice(shared.sessions.end(), shared.sessions, shared.sessions.begin());
  oldest->close();
}

void HttpServer::Impl::serve() {
  pthread_setname_np(pthread_self(), "foreshock-http");
  for (;;) {
    try {
      context->run();
      return;
    } catch (const std::exception&) {
      // No memory for one client: its handler is gone and its connection with it; the others go on.
    }
  }
}

HttpServer::HttpServer() : impl_(std::make_unique<Impl>()) {}
HttpServer::~HttpServer() { stop(); }

bool HttpServer::start(const std::string& wanted_address, int port, std::string* error) {
  const std::string address = wanted_address == "localhost" ? "127.0.0.1" : wanted_address;
  if (is_refused(address, error)) return false;
  if (port < 0 || port > 65535) {
    *error = "port " + std::to_string(port) + ": must be 0 to 65535";
    return false;
  }
  stop();
  impl_->context = std::make_unique<asio::io_context>(1);
  impl_->pause.emplace(*impl_->context);
  impl_->address = address;
  beast::error_code failure;
  for (int tried = 0; tried < kPortsTried && port + tried <= 65535; ++tried) {
    failure = impl_->listen(address, port + tried);
    if (failure != asio::error::address_in_use || port == 0) break;
  }
  if (failure) {
    *error = "cannot listen on " + address + " port " + std::to_string(port) + ": " + failure.message();
    stop();
    return false;
  }
  impl_->accept();

  // Signals belong to the agent's main thread.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  impl_->thread = std::thread([this] { impl_->serve(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return true;
}

const std::string& HttpServer::address() const { return impl_->address; }
int HttpServer::port() const { return impl_->port; }

void HttpServer::publish(std::shared_ptr<const Published> published) {
  if (published == nullptr) return;
  const std::lock_guard lock(impl_->shared.mutex);
  impl_->shared.published.swap(published);
}  // what was shown before is destroyed after the lock is gone

void HttpServer::stop() {
  if (impl_->context) impl_->context->stop();
  if (impl_->thread.joinable()) impl_->thread.join();
  impl_->acceptor.reset();
  impl_->pause.reset();
  impl_->context.reset();
}

}  // namespace foreshock
