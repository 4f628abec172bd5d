// HTTP requests to servers in the world, for `pull`: by libcurl, with its proxies (HTTP_PROXY,
// HTTPS_PROXY, ALL_PROXY, NO_PROXY) and its certificates (the system's; SSL_CERT_FILE names another
// file, SSL_CERT_DIR other folders). Our own processes are called by http_client.h. One thread a
// call.
#ifndef BATON_CLI_WEB_CLIENT_H_
#define BATON_CLI_WEB_CLIENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace baton::cli {

// One request.
struct WebRequest {
  std::string url;            // whole, http or https
  bool is_head = false;       // HEAD instead of GET
  std::string authorization;  // value of the header, or "" for none
  uint64_t begin = 0;         // first byte wanted; 0 = the whole file
  // Validator of the version whose bytes are wanted: the server sends the whole of any other
  // version. "" = of whichever version is there. With `begin` only.
  std::string if_range;
  int max_redirects = 0;
};

// Status line and headers of an answer.
struct WebHead {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case; of several lines the last
  std::string redirect;  // where a redirect leads, as a whole URL; "" = it is none
  std::string url;       // that answered

  // The header's value, or "".
  std::string Header(const std::string& name) const;
};

// Called with the head once, before the first piece; an error ends the call with it. Not called for
// a redirect where redirects are followed.
using WebHeadCallback = std::function<Status(const WebHead&)>;
// Called with each piece of the body; an error ends the call with it.
using WebBodyCallback = std::function<Status(std::string_view)>;

// Sends the request and reads the whole answer; any status is OK here. Up to max_redirects
// redirects are followed (one more is TooManyRedirects; with 0 a redirect is an answer): never from
// https to http (PermissionDenied), and without the authorization once scheme, host or port differ
// from the request's. NotFound = a name cannot be resolved; Unavailable = nobody takes the
// connection, or the proxy refuses; DeadlineExceeded = no connection within 10 s or silence for 60
// s; DataLoss = the answer broke or is no HTTP; PermissionDenied = no trusted TLS; InvalidArgument
// = a URL or certificate file that cannot be used. Messages name the URL without its query, which
// may be signed.
StatusOr<WebHead> WebCall(const WebRequest& request, const WebHeadCallback& on_head,
                          const WebBodyCallback& on_body);

// Unavailable: the redirects that the server answers with do not end: in a circle, or in a chain
// that is too long. `urls`: what was asked, in order; `next`: what the last answer named.
Status TooManyRedirects(const std::vector<std::string>& urls, const std::string& next);

// True when both URLs have the same scheme, host and port; a port that is not said is the scheme's.
bool IsSameOrigin(std::string_view one, std::string_view other);

// `list`, the value of NO_PROXY, in the form in which libcurl understands it for this URL. libcurl
// knows neither ports nor brackets there, which Go and Python do: HOST:PORT stands as HOST where
// the port is the URL's and is left out elsewhere, and [::1] is ::1.
std::string NoProxyFor(std::string_view list, std::string_view url);

// A path as URLs have it: all but letters, digits, "-._~" and the "/" between folders as %XX.
std::string UrlPart(std::string_view path);

// HF_TOKEN; without it the file HF_TOKEN_PATH, else ${HF_HOME:-~/.cache/huggingface}/token. Blanks
// and line ends around the token are taken off, and what is then empty is no token: "". A variable
// that is set and empty means none, whatever the file holds. InvalidArgument names the variable or
// file whose token holds other than printable ASCII characters, or a blank; never the token itself.
StatusOr<std::string> HubToken();

// ${HF_ENDPOINT:-https://huggingface.co} without blanks around it and without a closing "/".
// InvalidArgument names a value that is no http or https URL.
StatusOr<std::string> HubEndpoint();

}  // namespace baton::cli

#endif  // BATON_CLI_WEB_CLIENT_H_
