// clang-format off
#include "exporters/http_session.h"  // first, for the order of Boost's includes
// clang-format on
#include "exporters/http_server.h"

#include <pthread.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <thread>

namespace foreshock {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxConnections = 256;
constexpr int kPortsTried = 100;
constexpr milliseconds kAcceptPause(100);  // after a failed accept, e.g. no file descriptor left

bool is_refused(const std::string& address, std::string* error) {
  if (address == "127.0.0.1" || address == "::1") return false;
  *error =
      "cannot listen on '" + address + "': only 127.0.0.1 and ::1 are allowed; use an SSH tunnel or a proxy";
  return true;
}

}  // namespace

struct HttpServer::Impl {
  HttpShared shared;
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
  std::make_shared<HttpSession>(std::move(socket), &shared)->wait();
  accept();
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
