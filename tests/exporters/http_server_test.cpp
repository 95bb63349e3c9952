#include "exporters/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "exporters/http_get.h"

namespace foreshock {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// A client that may misbehave.
class Client {
 public:
  explicit Client(int port) : file_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(file_, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    const timeval patience{10, 0};
    setsockopt(file_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  ~Client() { close(file_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void say(const std::string& text) const { send(file_, text.data(), text.size(), MSG_NOSIGNAL); }
  // Until the server closes.
  std::string hear() const {
    std::string all;
    char piece[4096];
    for (ssize_t n; (n = recv(file_, piece, sizeof piece, 0)) > 0;) all.append(piece, static_cast<size_t>(n));
    return all;
  }

 private:
  int file_;
};

class Server : public testing::Test {
 protected:
  Server() {
    EXPECT_TRUE(server_.start("127.0.0.1", 0, &error_)) << error_;
    publish("ok");
  }
  void publish(const std::string& health, const std::string& state = "{}") {
    Registry registry;
    registry.set(Metric::kLoss, {"r", "0"}, 1.5);
    server_.publish(std::make_shared<Published>(Published{registry.snapshot(), state, true, health}));
  }
  std::string get(const std::string& path) {
    std::string body;
    EXPECT_TRUE(http_get("127.0.0.1", server_.port(), path, 5000, &body, &error_)) << error_;
    return body;
  }
  std::string raw(const std::string& request) const {
    const Client client(server_.port());
    client.say(request);
    return client.hear();
  }

  HttpServer server_;
  std::string error_;
};

TEST_F(Server, ServesEachPage) {
  EXPECT_THAT(get("/metrics"), HasSubstr("foreshock_loss{run=\"r\",rank=\"0\"} 1.5\n"));
  EXPECT_EQ(get("/api/v1/state"), "{}");
  EXPECT_EQ(get("/healthz"), "ok\n");
  EXPECT_THAT(get("/"), StartsWith("<!doctype html>"));
  publish("still ok");
  EXPECT_EQ(get("/healthz"), "still ok\n");
}

TEST_F(Server, EveryReplyCarriesTheSecurityHeaders) {
  for (const char* path : {"/", "/metrics", "/nothing"}) {
    const std::string reply =
        raw(std::string("GET ") + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    EXPECT_THAT(reply, HasSubstr("Content-Security-Policy: default-src 'self'"));
    EXPECT_THAT(reply, HasSubstr("X-Content-Type-Options: nosniff"));
    EXPECT_THAT(reply, Not(HasSubstr("Access-Control")));
  }
}

TEST_F(Server, RefusesWithTheRightStatus) {
  const std::string host = "Host: localhost\r\n";
  EXPECT_THAT(raw("POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\nConnection: close\r\n\r\nabc"),
              StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(raw("GET / HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc"), StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(raw("GET / HTTP/1.1\r\n" + host + "Content-Length: 99999999999\r\n\r\n"),
              StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(raw("GET /x HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(raw("GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"),
              StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(raw("GET / HTTP/1.1\r\n" + host + host + "\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(raw("\x16\x03\x01 this is not HTTP\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(raw("GET / HTTP/1.1\r\n" + host + "X: " + std::string(20000, 'x') + "\r\n\r\n"),
              StartsWith("HTTP/1.1 431"));
}

TEST_F(Server, HeadHasTheLengthAndNoBody) {
  const std::string reply = raw("HEAD /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(reply, HasSubstr("Content-Length: 3\r\n"));
  EXPECT_THAT(reply, testing::EndsWith("\r\n\r\n"));
}

TEST_F(Server, KeepsAConnectionForPipelinedRequests) {
  const std::string one = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n";
  const std::string replies = raw(one + "\r\n" + one + "\r\n" + one + "Connection: close\r\n\r\n");
  size_t count = 0;
  for (size_t at = replies.find("HTTP/1.1 200"); at != std::string::npos;
       at = replies.find("HTTP/1.1 200", at + 1))
    ++count;
  EXPECT_EQ(count, 3u);
}

TEST_F(Server, AHundredHalfOpenClientsDelayNobody) {
  std::vector<std::unique_ptr<Client>> idle;
  for (int i = 0; i < 100; ++i) {
    idle.push_back(std::make_unique<Client>(server_.port()));
    if (i % 2 == 0) idle.back()->say("GET /metrics HTT");
  }
  for (int i = 0; i < 10; ++i) {
    const auto begin = Clock::now();
    get("/metrics");
    EXPECT_LT(ms_since(begin), 100);
  }
}

TEST_F(Server, AHalfSentHeadIsDroppedAfterASecond) {
  const auto begin = Clock::now();
  EXPECT_EQ(raw("GET /metrics HTT"), "");
  EXPECT_GT(ms_since(begin), 800);
  EXPECT_LT(ms_since(begin), 3000);
}

TEST_F(Server, AClientThatDoesNotReadDelaysNobodyAndIsDropped) {
  const size_t size = 32 << 20;  // more than the socket buffers hold
  publish("ok", std::string(size, 'x'));
  const Client deaf(server_.port());
  deaf.say("GET /api/v1/state HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const auto begin = Clock::now();
  get("/metrics");
  EXPECT_LT(ms_since(begin), 500);
  std::this_thread::sleep_for(std::chrono::seconds(5));  // longer than the server waits for a reply to leave
  EXPECT_LT(deaf.hear().size(), size);
}

TEST_F(Server, BeyondTheCapTheOldestIdleConnectionGoes) {
  std::vector<std::unique_ptr<Client>> crowd;
  for (int i = 0; i < 300; ++i) crowd.push_back(std::make_unique<Client>(server_.port()));
  EXPECT_EQ(get("/healthz"), "ok\n");
  const auto begin = Clock::now();
  EXPECT_EQ(crowd.front()->hear(), "");
  EXPECT_LT(ms_since(begin), 5000) << "closed, long before it would have been for silence";
  crowd.back()->say("GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(crowd.back()->hear(), HasSubstr("200"));
}

TEST_F(Server, AClientThatLeavesInMidReplyDoesNoHarm) {
  publish("ok", std::string(16 << 20, 'x'));
  for (int i = 0; i < 5; ++i)
    Client(server_.port()).say("GET /api/v1/state HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(get("/healthz"), "ok\n");
}

TEST_F(Server, PublishingWhileManyReadIsSafe) {
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (int i = 0; !done; ++i) publish("round " + std::to_string(i));
  });
  for (int i = 0; i < 50; ++i) {
    EXPECT_THAT(get("/healthz"), testing::AnyOf(StartsWith("round "), StartsWith("ok")));
    get("/metrics");
  }
  done = true;
  writer.join();
}

TEST_F(Server, TakesTheNextFreePort) {
  HttpServer second;
  ASSERT_TRUE(second.start("localhost", server_.port(), &error_)) << error_;
  EXPECT_GT(second.port(), server_.port());
  EXPECT_LE(second.port(), server_.port() + 100);
}

TEST_F(Server, StopsAtOnceAndStartsAgain) {
  const Client idle(server_.port());
  get("/healthz");
  const auto begin = Clock::now();
  server_.stop();
  server_.stop();
  EXPECT_LT(ms_since(begin), 500);
  EXPECT_EQ(idle.hear(), "");
  ASSERT_TRUE(server_.start("127.0.0.1", 0, &error_)) << error_;
  EXPECT_EQ(get("/healthz"), "ok\n");
}

TEST(HttpServer, RefusesEveryAddressButLoopback) {
  for (const char* address : {"0.0.0.0", "::", "10.0.0.1", "", "example.com"}) {
    HttpServer server;
    std::string error;
    EXPECT_FALSE(server.start(address, 0, &error)) << address;
    EXPECT_THAT(error, HasSubstr("only 127.0.0.1"));
    EXPECT_EQ(error.find('\n'), std::string::npos);
  }
}

TEST(HttpGet, SaysInOneLineWhatWentWrong) {
  std::string body, error;
  EXPECT_FALSE(http_get("10.0.0.1", 80, "/", 100, &body, &error));
  EXPECT_THAT(error, HasSubstr("not a loopback address"));
  EXPECT_FALSE(http_get("127.0.0.1", 0, "/", 100, &body, &error));
  EXPECT_FALSE(http_get("127.0.0.1", 1, "/", 500, &body, &error));
  EXPECT_THAT(error, HasSubstr("refused"));
  EXPECT_FALSE(http_get("127.0.0.1", 1, "/a b", 500, &body, &error));
}

TEST_F(Server, HttpGetReportsAnotherStatus) {
  std::string body;
  EXPECT_FALSE(http_get("127.0.0.1", server_.port(), "/nothing", 1000, &body, &error_));
  EXPECT_THAT(error_, HasSubstr("404 Not Found"));
}

}  // namespace
}  // namespace foreshock
