"""The schemas that the conformance suite asks of a server, for `fixture.py`."""


def form(properties, required=()):
    return {"type": "object", "properties": properties, "required": list(required)}


def string(description, **more):
    return {"type": "string", "description": description, **more}


def titled(word):
    ordinals = ["First", "Second", "Third"]
    return [
        {"const": f"value{number}", "title": f"{ordinal} {word}"}
        for number, ordinal in enumerate(ordinals, 1)
    ]


def several(description, items):
    limits = {"minItems": 1, "maxItems": 3}
    return {"type": "array", "description": description, **limits, "items": items}


OPTIONS = ["option1", "option2", "option3"]

# What a user is asked to fill in, by the tool that asks.
FORMS = {
    "test_elicitation": form(
        {"username": string("User's response"), "email": string("User's email address")},
        ["username", "email"],
    ),
    "test_elicitation_sep1034_defaults": form(
        {
            "name": string("User name", default="John Doe"),
            "age": {"type": "integer", "description": "User age", "default": 30},
            "score": {"type": "number", "description": "User score", "default": 95.5},
            "status": string(
                "User status", enum=["active", "inactive", "pending"], default="active"
            ),
            "verified": {"type": "boolean", "description": "Verification status", "default": True},
        }
    ),
    "test_elicitation_sep1330_enums": form(
        {
            "untitledSingle": string("Select one option", enum=OPTIONS),
            "titledSingle": string("Select one option with titles", oneOf=titled("Option")),
            "legacyEnum": string(
                "Select one option (legacy)",
                enum=["opt1", "opt2", "opt3"],
                enumNames=["Option One", "Option Two", "Option Three"],
            ),
            "untitledMulti": several(
                "Select multiple options", {"type": "string", "enum": OPTIONS}
            ),
            "titledMulti": several(
                "Select multiple options with titles", {"anyOf": titled("Choice")}
            ),
        }
    ),
}


def one_text(field):
    return form({field: {"type": "string"}}, [field])


CONFIRM = form({"ok": {"type": "boolean"}}, ["ok"])

# A schema whose arguments are mirrored into HTTP headers.
IN_HEADERS = form(
    {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "count": {"type": "integer", "x-mcp-header": "Count"},
        "loud": {"type": "boolean", "x-mcp-header": "Loud"},
    }
)

# A schema that uses most of JSON Schema 2020-12.
SCHEMA_2020_12 = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
