// The form that a request asks of its answer: `response_format`, vLLM's `structured_outputs` and
// its older names guided_*. What each may be, and what it is as a grammar. Pure but for the model's
// cache of grammars; any thread.
//
// At most one field of a request may ask for a form. A field that asks for nothing (null,
// {"type":"text"}) counts as absent, and so does a member of structured_outputs (null, json_object
// false). An empty text or list, and an object of structured_outputs whose members ask for no form,
// are errors: the client meant a form, and must not take a free answer for it.
#ifndef BATON_API_ANSWER_FORM_H_
#define BATON_API_ANSWER_FORM_H_

#include <string>
#include <string_view>
#include <vector>

#include "src/api/params.h"
#include "src/base/json_value.h"
#include "src/base/status.h"
#include "src/router/request_error.h"
#include "src/router/submit.h"
#include "src/wire/answer_grammar.h"

namespace baton::api {

inline constexpr std::string_view kExpectedResponseFormat =
    "{\"type\":\"text\"}, {\"type\":\"json_object\"}, "
    "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":object}}, "
    "{\"type\":\"structural_tag\",\"structures\":array,\"triggers\":array} or "
    "{\"type\":\"structural_tag\",\"format\":object}";
inline constexpr std::string_view kExpectedStructuredOutputs =
    "an object with one of json, regex, choice, grammar, json_object and structural_tag";
inline constexpr std::string_view kExpectedSchema = "a JSON Schema as an object, or as its text";
inline constexpr std::string_view kExpectedRegex = "a regular expression as a string";
inline constexpr std::string_view kExpectedChoice = "an array of strings";
inline constexpr std::string_view kExpectedLark =
    "a grammar in Lark's form or in GBNF, as a string";

// Each sets the form of `params`, or leaves it where the value asks for nothing. False with `error`
// set when the value is not what kExpected... says, or when another field gave a form.
bool StoreResponseFormat(const JsonValue& value, ApiParams* params, router::RequestError* error);
bool StoreStructuredOutputs(const JsonValue& value, ApiParams* params, router::RequestError* error);
// `name`: guided_json, guided_regex, guided_choice or guided_grammar.
bool StoreGuided(std::string_view name, const JsonValue& value, ApiParams* params,
                 router::RequestError* error);

// Takes the blanks out of the JSON of the form where the request asks for that. To be called when
// all fields are read; a second call changes nothing.
bool CloseBlanks(ApiParams* params, router::RequestError* error);

// False with `error` set: blanks are to be taken out, and no field asks for a form. To be called
// when the fields of the surface are read too, as Anthropic's output_config.
bool HasFormWithoutBlanks(const ApiParams& params, router::RequestError* error);

// "#/properties/a" is ".properties.a", with '?' for what no header takes; at most 90 bytes.
std::string NameOfPlace(std::string_view place);

// True: `status`, which src/text gave, is no fault of the request, and `error` is set. A caught
// panic is a 500, a lack of threads a 503 with Retry-After; the log has the reason of either.
bool IsServerFault(const Status& status, router::RequestError* error);

// Compiles a grammar for the model, so that no worker hears of one that it would refuse. False:
// `error` names `field` and the place within its value. `ignored`, which may be null, gets all
// keywords of a loose schema that are not enforced, as names below the field.
bool CheckGrammar(const router::ModelInfo& model, std::string_view field,
                  const wire::AnswerGrammar& grammar, std::vector<std::string>* ignored,
                  router::RequestError* error);

}  // namespace baton::api

#endif  // BATON_API_ANSWER_FORM_H_
