// clang-format off
#include "exporters/http_session.h"  // first, for the order of Boost's includes
// clang-format on
#include "exporters/http_server.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>
#include <thread>

namespace foreshock {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxConnections = 256;
constexpr int kPortsTried = 100;
constexpr milliseconds kAcceptPause(100);  // after a failed accept, e.g. no file descriptor left

constexpr std::string_view kUnix = "unix:";

bool is_socket_path(const std::string& address) { return address.starts_with(kUnix); }

// Why this must not be listened on; "" when it may.
std::string refusal_of(const std::string& address, bool has_token) {
  if (is_socket_path(address))
    return address.size() - kUnix.size() < sizeof(sockaddr_un::sun_path) && address.size() > kUnix.size()
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
  // Destroyed before `shared`: it owns the handlers, and they the sessions.
  std::unique_ptr<asio::io_context> context;
  std::optional<tcp::acceptor> acceptor;  // one of the two
  std::optional<asio::local::stream_protocol::acceptor> socket_acceptor;
  struct stat socket_file = {};  // of the socket, as we made it
  std::optional<asio::steady_timer> pause;
  std::thread thread;
  std::string address;
  int port = 0;

  beast::error_code listen(const std::string& wanted_address, int wanted_port);
  beast::error_code listen_at(const std::string& path);
  beast::error_code bind(int port_wanted);
  void accept();
  template <class Socket>
  void on_accept(beast::error_code error, Socket socket);
  void forget_socket();
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

// A socket file that nobody listens on is taken away; one that answers is another agent's.
beast::error_code HttpServer::Impl::listen_at(const std::string& path) {
  using local = asio::local::stream_protocol;
  beast::error_code error;
  struct stat there = {};
  if (lstat(path.c_str(), &there) == 0 && S_ISSOCK(there.st_mode)) {
    local::socket probe(*context);
    probe.connect(local::endpoint(path), error);
    if (!error) return asio::error::address_in_use;
    unlink(path.c_str());
    error.clear();
  }
  socket_acceptor.emplace(*context);
  socket_acceptor->open(local(), error);
  // Only this thread runs yet. Between bind and a chmod afterwards anybody could connect.
  const mode_t before = umask(0177);
  if (!error) socket_acceptor->bind(local::endpoint(path), error);
  umask(before);
  if (!error && lstat(path.c_str(), &socket_file) != 0) error = asio::error::not_found;
  if (!error) socket_acceptor->listen(asio::socket_base::max_listen_connections, error);
  return error;
}

// The first free port of a hundred.
beast::error_code HttpServer::Impl::bind(int wanted) {
  if (is_socket_path(address)) return listen_at(address.substr(kUnix.size()));
  beast::error_code failure;
  for (int tried = 0; tried < kPortsTried && wanted + tried <= 65535; ++tried) {
    failure = listen(address, wanted + tried);
    if (failure != asio::error::address_in_use || wanted == 0) break;
  }
  return failure;
}

void HttpServer::Impl::forget_socket() {
  if (!socket_acceptor) return;
  socket_acceptor.reset();
  const std::string path = address.substr(kUnix.size());
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
    close_oldest();
    pause->expires_after(kAcceptPause);
    pause->async_wait([this](beast::error_code cancelled) {
      if (!cancelled) accept();
    });
    return;
  }
  accept();  // first: what follows needs memory and may throw
  if (shared.sessions.size() >= kMaxConnections) close_oldest();
  std::make_shared<HttpSession>(StreamProtocol::socket(std::move(socket)), &shared)->wait();
}

void HttpServer::Impl::close_oldest() {
  if (shared.sessions.empty()) return;
  HttpSession* oldest = shared.sessions.front();
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

bool HttpServer::start(const std::string& wanted_address, int port, std::string* error,
                       const std::string& token_file) {
  const std::string address = wanted_address == "localhost" ? "127.0.0.1" : wanted_address;
  const auto fail = [&](const std::string& why) {
    *error = "cannot listen on '" + address + "': " + why;
    return false;
  };
  if (const std::string why = refusal_of(address, !token_file.empty()); !why.empty()) return fail(why);
  if (port < 0 || port > 65535) return fail("port " + std::to_string(port) + " must be 0 to 65535");
  stop();
  std::unique_ptr<BearerToken> token;
  if (!token_file.empty() && (token = BearerToken::open(token_file, error)) == nullptr) return false;
  impl_->shared.routes.require(std::move(token));
  impl_->shared.routes.take_any_host(is_socket_path(address));
  impl_->context = std::make_unique<asio::io_context>(1);
  impl_->pause.emplace(*impl_->context);
  impl_->address = address;
  impl_->port = 0;
  if (const beast::error_code failure = impl_->bind(port)) {
    stop();
    return fail((is_socket_path(address) ? "" : "port " + std::to_string(port) + ": ") + failure.message());
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

std::string HttpServer::place() const {
  if (is_socket_path(impl_->address)) return impl_->address;
  const bool is_v6 = impl_->address.find(':') != std::string::npos;
  return (is_v6 ? "[" + impl_->address + "]" : impl_->address) + ":" + std::to_string(impl_->port);
}

void HttpServer::publish(std::shared_ptr<const Published> published) {
  if (published == nullptr) return;
  const std::lock_guard lock(impl_->shared.mutex);
  impl_->shared.published.swap(published);
}  // what was shown before is destroyed after the lock is gone

void HttpServer::stop() {
  if (impl_->context) impl_->context->stop();
  if (impl_->thread.joinable()) impl_->thread.join();
  impl_->acceptor.reset();
  impl_->forget_socket();
  impl_->pause.reset();
  impl_->context.reset();
}

}  // namespace foreshock
