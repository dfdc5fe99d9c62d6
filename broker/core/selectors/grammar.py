"""The grammar of selectors, and the parser that Lark makes of it.

LALR, which keeps a stack of its own: no depth of parentheses is a depth of calls. As in SQL-92 NOT
takes all of a comparison; in Artemis and Classic it takes the next operand, so that ``NOT a = 1``
is not what it says there, and everybody writes ``NOT (a = 1)``.
"""

from typing import Any, Final

from lark import Lark, Token, Transformer

_GRAMMAR: Final = r"""
    start: disjunction

    ?disjunction: conjunction (_OR conjunction)*
    ?conjunction: negation (_AND negation)*
    ?negation: NOT negation
        | equality
    ?equality: relation
        | equality EQUAL relation         -> equal
        | equality _IS _NULL              -> is_null
        | equality _IS NOT _NULL          -> is_not_null
    ?relation: sum
        | relation ORDER sum              -> order
        | relation [NOT] _BETWEEN sum _AND sum                    -> between
        | relation [NOT] _LIKE TEXT [_ESCAPE TEXT]                -> like
        | relation [NOT] _IN "(" TEXT ("," TEXT)* ")"             -> in_list
    ?sum: product (SIGN product)*
    ?product: signed (TIMES signed)*
    ?signed: SIGN signed                  -> sign
        | operand
    ?operand: NAME                        -> name
        | QUOTED_NAME                     -> quoted_name
        | TEXT                            -> text
        | FLOAT                           -> float_number
        | INTEGER                         -> integer
        | TRUE                            -> true
        | FALSE                           -> false
        | XPATH TEXT                      -> xpath
        | "(" disjunction ")"

    EQUAL: "=" | "<>"
    ORDER: ">=" | "<=" | ">" | /<(?!>)/
    SIGN: "+" | "-"
    TIMES: "*" | "/" | "%"

    _OR.3: /or(?![IN_NAME])/i
    _AND.3: /and(?![IN_NAME])/i
    NOT.3: /not(?![IN_NAME])/i
    _BETWEEN.3: /between(?![IN_NAME])/i
    _LIKE.3: /like(?![IN_NAME])/i
    _ESCAPE.3: /escape(?![IN_NAME])/i
    _IN.3: /in(?![IN_NAME])/i
    _IS.3: /is(?![IN_NAME])/i
    _NULL.3: /null(?![IN_NAME])/i
    TRUE.3: /true(?![IN_NAME])/i
    FALSE.3: /false(?![IN_NAME])/i
    XPATH.3: /x(path|query)(?![IN_NAME])/i

    TEXT: /'(?:[^']|'')*'/
    QUOTED_NAME: /"(?:[^"]|"")*"/
    FLOAT.2: /(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+)[fd]?(?![\w$])/i
    INTEGER.1: /(?:0x[0-9a-f]+|[0-9]+l?)(?![\w$])/i
    NAME: /(?![0-9])[\w$][IN_NAME]*/

    LINE_COMMENT.4: /--[^\r\n]*[\r\n]/
    COMMENT.4: /\/\*(?:[^*]|\*(?!\/))*\*\//
    %ignore LINE_COMMENT
    %ignore COMMENT
    %ignore /[ \t\r\n\f]+/
"""
_IN_NAME: Final = r"\w$"


def parser(build: Transformer[Token, Any], *, hyphenated: bool) -> Lark:
    """Return what parses selectors, and has ``build`` make of each rule what it is.

    With ``hyphenated`` a name may have hyphens, and a minus needs a space before it.
    """
    in_name = _IN_NAME + "-" if hyphenated else _IN_NAME
    grammar = _GRAMMAR.replace("IN_NAME", in_name)
    return Lark(grammar, parser="lalr", lexer="basic", maybe_placeholders=True, transformer=build)
