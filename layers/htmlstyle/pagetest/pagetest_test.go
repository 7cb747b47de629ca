package pagetest

import (
	"strings"
	"testing"

	"slipway/layers/htmlstyle"
)

func TestFindProblems(t *testing.T) {
	head := strings.Join(heads, "\n") + "<style>"
	scripted := strings.Replace(head, heads[1], string(htmlstyle.TablePolicy()), 1) + "</style><body><script>" + string(htmlstyle.TableScript) + "</script>"
	row := "<table><tr>" + strings.Repeat("<td>x</td>", 5) + "</tr></table>"
	for _, tt := range []struct{ name, page, want string }{
		{"good page", head + `</style><body><a href="logs/a.txt">a</a>`, ""},
		{"no head", "<body>", "the page lacks <meta"},
		{"script", head + "</style><body><script>", "<script"},
		{"the table's script", scripted, ""},
		{"the table's script twice", strings.Replace(scripted, "<body>", "<body><script>"+string(htmlstyle.TableScript)+"</script>", 1), "<script"},
		{"another script beside it", strings.Replace(scripted, "<body>", "<body><script>alert(1)</script>", 1), "<script"},
		{"the table's script, and no policy", head + "</style><body><script>" + string(htmlstyle.TableScript) + "</script>", "<script"},
		{"image", head + `</style><body><img src="x.png">`, "<img"},
		{"style of elsewhere", head + `@import "x"</style><body>`, "@import"},
		{"font of elsewhere", head + `p { src: url(x) }</style><body>`, "url("},
		{"handler", head + `</style><body><p onclick="x">`, "onclick="},
		{"link to a network", head + `</style><body><a href="https://example.com">`, "https:"},
		{"link to a commit", head + `</style><body><a href="https://git.lab:8443/o/r/-/commit/0a" rel="noreferrer">`, ""},
		{"link that names this page", head + `</style><body><a href="https://git.lab/o/r">`, "https:"},
		{"link with a query", head + `</style><body><a href="https://git.lab/o/r?x" rel="noreferrer">`, "https:"},
		{"link to a script", head + `</style><body><a href="javascript:x">`, "javascript:"},
		{"whole path", head + `</style><body><a href="/etc">`, `"href=\"/"`},
		{"words of a board", head + `</style><body><p>url( src= &lt;script&gt; https://example.com width: 9000px</p>`, ""},
		{"wide rule", head + `p { min-width: 30rem }</style><body>`, "480 px"},
		{"wide grid", head + `p { grid-template-columns: minmax(26rem, 1fr) }</style><body>`, "416 px"},
		{"limit", head + `p { max-width: 64rem; width: 100% }</style><body>`, ""},
		{"wide table", head + "</style><body><div>" + row + "</div>", "more than 4 columns"},
		{"wide table after one that scrolls", head + `</style><body><div class="wide">` + row + "</div>" + row, "more than 4 columns"},
		{"wide table that scrolls", head + `</style><body><div class="wide"><div>` + row + "</div></div>", ""},
	} {
		got := strings.Join(findProblems(tt.page), "\n")
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: findProblems = %q; want %q", tt.name, got, tt.want)
		}
	}
}
