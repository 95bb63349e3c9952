// The HTTP server of the agent, with Boost.Beast. One thread runs all handlers of all connections.
#include "exporters/http_server.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>
#include <thread>

// Boost 1.74's Asio uses std::exchange without including <utility>, hence the order of these includes.
// clang-format off
#define BOOST_ASIO_DISABLE_FENCED_BLOCK  // one thread runs every handler; ThreadSanitizer cannot follow fences
#include <utility>
#include <boost/asio.hpp>
// clang-format on
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "exporters/http_routes.h"

namespace foreshock {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using StreamProtocol = asio::generic::stream_protocol;  // TCP or a Unix socket
using std::chrono::seconds;

constexpr uint32_t kMaxHeadBytes = 8192;  // of a request
constexpr seconds kIdleTime(60);          // longest wait for the first byte of a request
constexpr seconds kHeadTime(1);           // to read a head after its first byte, or to discard unread bytes
constexpr seconds kReplyTime(4);          // to send a reply
constexpr size_t kMaxReplyBytes = 64 << 20;  // of a body; our client (http_get.h) accepts no larger reply

class HttpSession;
using HttpSessions = std::list<HttpSession*>;  // the connection that has been silent longest comes first

// State that all sessions share. Only the server's thread uses it, except `published`, guarded by `mutex`.
struct HttpShared {
  std::shared_ptr<const Published> current() {
    const std::lock_guard lock(mutex);
    return published;
  }

  std::mutex mutex;
  std::shared_ptr<const Published> published = std::make_shared<Published>();
  HttpRoutes routes;
  HttpSessions sessions;
  // Sessions whose clients have sent further requests without waiting for replies (pipelined requests), in
  // the order in which they are served: one in each turn of the event loop.
  std::deque<std::shared_ptr<HttpSession>> pipelined;
  bool is_turn_due = false;  // a turn that serves the first of `pipelined` is in the queue of the loop
};

// One connection: waits for a byte, reads a request head, replies, and starts again. The handler of a pending
// operation owns the session, or HttpShared::pipelined. If a handler returns without starting another
// operation, the session is destroyed, which closes the connection.
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(StreamProtocol::socket socket, HttpShared* shared)
      : stream_(std::move(socket)), shared_(shared) {
    list_entry_ = shared_->sessions.insert(shared_->sessions.end(), this);
  }
  ~HttpSession() { shared_->sessions.erase(list_entry_); }

  void wait_for_request() {
    if (buffer_.size() > 0) {  // the client sent the next request without waiting
      shared_->pipelined.push_back(shared_from_this());
      return request_turn();
    }
    stream_.expires_after(kIdleTime);
    // Waits by a read instead of socket().async_wait(), which would not obey the timeout of the stream.
    stream_.async_read_some(buffer_.prepare(kMaxHeadBytes),
                            [self = shared_from_this()](beast::error_code error, size_t bytes) {
                              if (error) return;
                              self->buffer_.commit(bytes);
                              self->read_head();
                            });
  }

  // Makes the pending operation fail, which ends the session.
  void close() { stream_.close(); }

 private:
  // Queues a turn that serves one pipelined request. Between two turns the loop runs the handlers of all
  // other connections, so that many requests of few clients do not delay the first request of another client.
  void request_turn() {
    if (shared_->is_turn_due) return;
    asio::post(stream_.get_executor(), [shared = shared_] {
      shared->is_turn_due = false;
      const std::shared_ptr<HttpSession> next = std::move(shared->pipelined.front());
      shared->pipelined.pop_front();
      if (!shared->pipelined.empty()) next->request_turn();
      next->read_head();
    });
    shared_->is_turn_due = true;
  }

  void read_head() {
    // Moves this session to the end of the list, since its client was the last to send something.
    shared_->sessions.splice(shared_->sessions.end(), shared_->sessions, list_entry_);
    parser_.emplace();
    parser_->header_limit(kMaxHeadBytes);
    stream_.expires_after(kHeadTime);
    http::async_read_header(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](beast::error_code error, size_t) { self->on_head(error); });
  }

  void on_head(beast::error_code error) {
    if (error == http::error::header_limit || error == http::error::buffer_overflow)
      return send(refusal(431, "the request head is too large"), false);
    if (error == http::error::body_limit) return send(refusal(413, "no request body is taken"), false);
    // These two errors mean that the client has closed. Other errors of their category come from the parser.
    if (error == http::error::end_of_stream || error == http::error::partial_message) return;
    const bool malformed =
        error && error.category() == http::make_error_code(http::error::end_of_stream).category();
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
    // A request's body is not read, so on a kept connection it would be parsed as the next request.
    send(reply, head.keep_alive() && !request.has_body);
  }

  static std::string_view text(beast::string_view view) { return {view.data(), view.size()}; }

  void send(const HttpReply& reply, bool keep_alive) {
    if (reply.body->size() > kMaxReplyBytes)
      return send(refusal(503, "the answer would be larger than 64 MiB"), false);
    const bool head_only = parser_->is_header_done() && parser_->get().method() == http::verb::head;
    body_ = reply.body;
    response_.emplace();
    response_->result(static_cast<unsigned>(reply.status));
    response_->version(11);  // HTTP/1.1
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
                        keep_alive ? self->wait_for_request() : self->finish();
                      });
  }

  // Closes the connection after what the client still sends was discarded. Closing earlier would reset the
  // connection, and the client might lose the reply.
  void finish() {
    beast::error_code ignored;
    stream_.socket().shutdown(asio::socket_base::shutdown_send, ignored);
    stream_.expires_after(kHeadTime);
    discard();
  }

  void discard() {
    discarded_ += buffer_.size();
    buffer_.clear();
    if (discarded_ > 8 * kMaxHeadBytes) return;  // a client that sends much more loses its reply
    stream_.async_read_some(buffer_.prepare(kMaxHeadBytes),
                            [self = shared_from_this()](beast::error_code error, size_t bytes) {
                              if (error) return;
                              self->buffer_.commit(bytes);
                              self->discard();
                            });
  }

  beast::basic_stream<StreamProtocol> stream_;
  HttpShared* shared_;
  HttpSessions::iterator list_entry_;             // of this session in shared_->sessions
  beast::flat_buffer buffer_{2 * kMaxHeadBytes};  // holds a head and the bytes that arrive with it
  std::optional<http::request_parser<http::buffer_body>> parser_;  // its body is never read
  std::optional<http::response<http::span_body<const char>>> response_;
  std::shared_ptr<const std::string> body_;  // body of the reply that is being sent
  size_t discarded_ = 0;                     // bytes
};

namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxConnections = 256;
constexpr milliseconds kAcceptPause(100);  // after a failed accept, e.g. no file descriptor left

constexpr std::string_view kUnixPrefix = "unix:";

bool is_unix_address(const std::string& address) { return address.starts_with(kUnixPrefix); }

// Whether no process has the socket file at `path` open. Only then the kernel refuses the connection of a
// datagram socket: a socket of another type is a type error, even if it does not listen or its queue is full.
// This connection never blocks, and a server does not notice it.
bool is_abandoned_socket(const std::string& path) {
  sockaddr_un to = {};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, path.data(), std::min(path.size(), sizeof to.sun_path - 1));
  const int probe = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const bool is_refused = probe >= 0 &&
                          connect(probe, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0 &&
                          errno == ECONNREFUSED;
  if (probe >= 0) close(probe);
  return is_refused;
}

// Why the server must not listen on this address; "" if it may.
std::string address_problem(const std::string& address, bool has_token) {
  if (is_unix_address(address))
    return address.size() - kUnixPrefix.size() < sizeof(sockaddr_un::sun_path) &&
                   address.size() > kUnixPrefix.size()
               ? ""
               : "the path of a socket has 1 to 107 bytes";
  beast::error_code error;
  const asio::ip::address numeric = asio::ip::make_address(address, error);
  if (error) return "it is neither a numeric address nor unix:PATH";
  return numeric.is_loopback() || has_token
             ? ""
             : "only 127.0.0.1 and ::1 are served without a token; give --token-file FILE";
}

}  // namespace

struct HttpServer::Impl {
  HttpShared shared;
  // Destroyed before `shared`: it owns the handlers, and they own the sessions, which refer to `shared`.
  std::unique_ptr<asio::io_context> context;
  std::optional<tcp::acceptor> acceptor;  // only one of the two acceptors is set
  std::optional<asio::local::stream_protocol::acceptor> socket_acceptor;
  struct stat socket_file = {};             // status of the socket file that listen_unix() created
  std::optional<asio::steady_timer> pause;  // between a failed accept and the next one
  std::thread thread;
  std::string address;
  int port = 0;

  beast::error_code listen_tcp(const std::string& wanted_address, int wanted_port);
  beast::error_code listen_unix(const std::string& path);
  beast::error_code listen(int first_port, int last_port);
  void accept();
  template <class Socket>
  void on_accept(beast::error_code error, Socket socket);
  void close_unix_socket();
  void close_longest_silent();
  void serve();
};

beast::error_code HttpServer::Impl::listen_tcp(const std::string& wanted_address, int wanted_port) {
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

// Listens on a Unix socket. A socket file that no process has open is left over from a killed agent and is
// replaced. If a process has it open, the result is address_in_use.
beast::error_code HttpServer::Impl::listen_unix(const std::string& path) {
  using local = asio::local::stream_protocol;
  beast::error_code error;
  struct stat existing = {};
  if (lstat(path.c_str(), &existing) == 0 && S_ISSOCK(existing.st_mode)) {
    if (!is_abandoned_socket(path)) return asio::error::address_in_use;
    unlink(path.c_str());
  }
  socket_acceptor.emplace(*context);
  socket_acceptor->open(local(), error);
  // The socket must be created with mode 0600: with a chmod() after bind() any user could connect in between.
  // No other thread runs yet, so umask() affects only this socket.
  const mode_t old_mask = umask(0177);
  if (!error) socket_acceptor->bind(local::endpoint(path), error);
  umask(old_mask);
  if (!error && lstat(path.c_str(), &socket_file) != 0) error = asio::error::not_found;
  if (!error) socket_acceptor->listen(asio::socket_base::max_listen_connections, error);
  return error;
}

// Listens on the Unix socket, or on the first free port from `first_port` to `last_port`. If `last_port` is
// smaller than `first_port`, only `first_port` is tried.
beast::error_code HttpServer::Impl::listen(int first_port, int last_port) {
  if (is_unix_address(address)) return listen_unix(address.substr(kUnixPrefix.size()));
  beast::error_code failure;
  int port_to_try = first_port;
  do {
    failure = listen_tcp(address, port_to_try);
  } while (failure == asio::error::address_in_use && ++port_to_try <= last_port);
  return failure;
}

// Closes the Unix socket and removes its file, unless another agent has replaced the file.
void HttpServer::Impl::close_unix_socket() {
  if (!socket_acceptor) return;
  socket_acceptor.reset();
  const std::string path = address.substr(kUnixPrefix.size());
  struct stat now = {};
  if (lstat(path.c_str(), &now) == 0 && now.st_dev == socket_file.st_dev && now.st_ino == socket_file.st_ino)
    unlink(path.c_str());
}

void HttpServer::Impl::accept() {
  const auto handler = [this](beast::error_code error, auto socket) { on_accept(error, std::move(socket)); };
  if (acceptor) acceptor->async_accept(handler);
  if (socket_acceptor) socket_acceptor->async_accept(handler);
}

template <class Socket>
void HttpServer::Impl::on_accept(beast::error_code error, Socket socket) {
  if (error == asio::error::operation_aborted) return;
  if (error) {
    close_longest_silent();  // frees a file descriptor, which accept() may lack
    pause->expires_after(kAcceptPause);
    pause->async_wait([this](beast::error_code cancelled) {
      if (!cancelled) accept();
    });
    return;
  }
  accept();  // comes first: the rest allocates memory and may throw
  if (shared.sessions.size() >= kMaxConnections) close_longest_silent();
  std::make_shared<HttpSession>(StreamProtocol::socket(std::move(socket)), &shared)->wait_for_request();
}

void HttpServer::Impl::close_longest_silent() {
  if (shared.sessions.empty()) return;
  HttpSession* longest_silent = shared.sessions.front();
  // The closed session stays in the list until its handler has run. At the end of the list it is chosen last.
  shared.sessions.splice(shared.sessions.end(), shared.sessions, shared.sessions.begin());
  longest_silent->close();
}

void HttpServer::Impl::serve() {
  pthread_setname_np(pthread_self(), "foreshock-http");
  for (;;) {
    try {
      context->run();
      return;
    } catch (const std::exception&) {
      // Out of memory for one client. Its handler and connection are destroyed; the others continue.
    }
  }
}

HttpServer::HttpServer() : impl_(std::make_unique<Impl>()) {}
HttpServer::~HttpServer() { stop(); }

bool HttpServer::start(const std::string& wanted_address, int port, std::string* error,
                       const std::string& token_file, int last_port) {
  const std::string address = wanted_address == "localhost" ? "127.0.0.1" : wanted_address;
  const auto fail = [&](const std::string& why) {
    *error = "cannot listen on '" + address + "': " + why;
    return false;
  };
  if (const std::string why = address_problem(address, !token_file.empty()); !why.empty()) return fail(why);
  if (port < 0 || port > 65535 || last_port > 65535)
    return fail("port " + std::to_string(port < 0 ? port : std::max(port, last_port)) +
                " must be 0 to 65535");
  stop();  // ends an earlier start()
  std::unique_ptr<BearerToken> token;
  if (!token_file.empty()) {
    token = BearerToken::open(token_file, error);
    if (token == nullptr) return false;
  }
  impl_->shared.routes.require_token(std::move(token));
  impl_->shared.routes.allow_any_host(is_unix_address(address));
  impl_->context = std::make_unique<asio::io_context>(1);
  impl_->pause.emplace(*impl_->context);
  impl_->address = address;
  impl_->port = 0;
  if (const beast::error_code failure = impl_->listen(port, last_port)) {
    stop();
    return fail((is_unix_address(address) ? "" : "port " + std::to_string(port) + ": ") + failure.message());
  }
  impl_->accept();

  // Signals are for the agent's main thread, so the new thread blocks them.
  sigset_t all, own_mask;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &own_mask);
  impl_->thread = std::thread([this] { impl_->serve(); });
  pthread_sigmask(SIG_SETMASK, &own_mask, nullptr);
  return true;
}

const std::string& HttpServer::address() const { return impl_->address; }
int HttpServer::port() const { return impl_->port; }

std::string HttpServer::endpoint() const {
  if (is_unix_address(impl_->address)) return impl_->address;
  const bool is_v6 = impl_->address.find(':') != std::string::npos;
  return (is_v6 ? "[" + impl_->address + "]" : impl_->address) + ":" + std::to_string(impl_->port);
}

void HttpServer::publish(std::shared_ptr<const Published> published) {
  if (published == nullptr) return;
  const std::lock_guard lock(impl_->shared.mutex);
  impl_->shared.published.swap(published);
}  // the previous state is destroyed after the lock is released

void HttpServer::stop() {
  if (impl_->context) impl_->context->stop();
  if (impl_->thread.joinable()) impl_->thread.join();
  impl_->acceptor.reset();
  impl_->close_unix_socket();
  impl_->pause.reset();
  impl_->shared.pipelined.clear();  // before the context, which their sockets use
  impl_->shared.is_turn_due = false;
  impl_->context.reset();
}

}  // namespace foreshock
