package pipelines

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// A small part of GitHub's expressions: what the pipeline uses. What it does not know is an
// error, so that a change of the pipeline is seen.

var token = regexp.MustCompile(`^\s*(\|\||&&|==|!=|[!(),]|'(?:[^']|'')*'|[A-Za-z_][A-Za-z0-9_.-]*|[0-9]+)`)

type expression struct {
	rest     string
	contexts map[string]any
	status   func(function string) (bool, bool) // of always(), failure() and so on
}

// evaluate returns the value of an expression.
func evaluate(text string, contexts map[string]any, status func(string) (bool, bool)) (value any, err error) {
	e := &expression{rest: text, contexts: contexts, status: status}
	defer func() {
		if p := recover(); p != nil {
			value, err = nil, fmt.Errorf("expression %q: %v", text, p)
		}
	}()
	value = e.or()
	if strings.TrimSpace(e.rest) != "" {
		panic("left: " + e.rest)
	}
	return value, nil
}

func (e *expression) peek() string {
	m := token.FindStringSubmatch(e.rest)
	if m == nil {
		return ""
	}
	return m[1]
}

func (e *expression) take() string {
	m := token.FindStringSubmatch(e.rest)
	if m == nil {
		panic("no token at " + e.rest)
	}
	e.rest = e.rest[len(m[0]):]
	return m[1]
}

func (e *expression) or() any {
	v := e.and()
	for e.peek() == "||" {
		e.take()
		if right := e.and(); !truth(v) {
			v = right
		}
	}
	return v
}

func (e *expression) and() any {
	v := e.compare()
	for e.peek() == "&&" {
		e.take()
		if right := e.compare(); truth(v) {
			v = right
		}
	}
	return v
}

func (e *expression) compare() any {
	v := e.unary()
	for e.peek() == "==" || e.peek() == "!=" {
		equal := e.take() == "=="
		v = (text(v) == text(e.unary())) == equal
	}
	return v
}

func (e *expression) unary() any {
	switch t := e.take(); {
	case t == "!":
		return !truth(e.unary())
	case t == "(":
		v := e.or()
		e.expect(")")
		return v
	case t[0] == '\'':
		return strings.ReplaceAll(t[1:len(t)-1], "''", "'")
	case t[0] >= '0' && t[0] <= '9':
		return t
	case e.peek() == "(":
		return e.call(t)
	default:
		return e.lookUp(t)
	}
}

func (e *expression) expect(want string) {
	if got := e.take(); got != want {
		panic("want " + want + ", not " + got)
	}
}

func (e *expression) call(name string) any {
	e.take()
	if name == "fromJSON" {
		var v any
		if err := json.Unmarshal([]byte(text(e.or())), &v); err != nil {
			panic(err)
		}
		e.expect(")")
		return v
	}
	e.expect(")")
	value, known := e.status(name)
	if !known {
		panic("function " + name)
	}
	return value
}

// lookUp returns a value of a context, or nil where a part is not there.
func (e *expression) lookUp(path string) any {
	words := strings.Split(path, ".")
	if _, known := e.contexts[words[0]]; !known {
		panic("context " + words[0])
	}
	var v any = e.contexts
	for _, word := range words {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[word]
	}
	return v
}

func truth(v any) bool { return v != nil && v != "" && v != false && v != "0" && v != 0.0 }

func text(v any) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

var inText = regexp.MustCompile(`\$\{\{(.*?)\}\}`)

// fill fills a text in. One that is an expression alone keeps its type.
func fill(s string, contexts map[string]any, status func(string) (bool, bool)) (any, error) {
	if m := inText.FindStringSubmatch(s); m != nil && m[0] == s {
		return evaluate(m[1], contexts, status)
	}
	var wrong error
	out := inText.ReplaceAllStringFunc(s, func(whole string) string {
		v, err := evaluate(inText.FindStringSubmatch(whole)[1], contexts, status)
		if err != nil {
			wrong = err
		}
		return text(v)
	})
	return out, wrong
}
