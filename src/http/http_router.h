// HttpRouter: the table of paths. Built by one thread, then constant; called from any.
#ifndef BATON_HTTP_HTTP_ROUTER_H_
#define BATON_HTTP_HTTP_ROUTER_H_

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "src/http/http_message.h"
#include "src/http/http_responder.h"

namespace baton::http {

// Exact path and method to handler. Unknown path: 404. Known path with another method: 405 with
// Allow. HEAD is answered by the GET handler; the server leaves the body out.
class HttpRouter {
 public:
  // `error_formatter` makes the bodies of 404 and 405; PlainTextError when empty.
  explicit HttpRouter(HttpErrorFormatter error_formatter = {});

  // `path` begins with '/'; each (method, path) once.
  void Add(std::string_view method, std::string_view path, HttpHandler handler);

  void Handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) const;
  // This router as a server's handler; the router must outlive the server.
  HttpHandler AsHandler() const;

 private:
  using Methods = std::map<std::string, HttpHandler, std::less<>>;

  static std::string AllowedMethods(const Methods& methods);

  HttpErrorFormatter error_formatter_;
  std::map<std::string, Methods, std::less<>> paths_;
};

}  // namespace baton::http

#endif  // BATON_HTTP_HTTP_ROUTER_H_
