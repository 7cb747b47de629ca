package bfb

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"slipway/layers/run"
)

const someHash = "$6$abcdefgh$" + "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234."

func TestCheckConfig(t *testing.T) {
	for _, test := range []struct{ name, text, wantErr string }{
		{"empty", "", ""},
		{"a hash", "ubuntu_PASSWORD='" + someHash + "'\n", ""},
		{"without a last newline", "ubuntu_PASSWORD='" + someHash + "'", ""},
		{"other settings", "WITH_NIC_FW_UPDATE=yes\nNIC_FW=\"$(cat /x)\" # a comment's 'quote\n", ""},
		{"a hash of grub's", "grub_admin_PASSWORD='grub.pbkdf2.sha512.10000.5EB1.0AF2'\n", ""},
		{"a hash with escapes", "ubuntu_PASSWORD=" + strings.ReplaceAll(someHash, "$", `\$`), ""},
		{"a password cleared", "ubuntu_PASSWORD=\n", ""},
		{"names that hold none", "BMC_PASSWORD_MINIMUM_LENGTH=12\nCTL_DELETE_UEFI_PASSWORD=1\n", ""},
		{"a length", "A=${#B} C=}# D=it{s\n", ""},
		{"other crypts", "a_PASSWORD='$y$j9T$F5Jx5fExrKuPp53xLKQ..1$X3DX6M94c7o.9agCG9G317fhZg9SqC.5i5rd.RhAtQ7'\nb_PASSWORD='$1$abcdefgh$0123456789012345678901'\nc_PASSWORD='$2b$12$01234567890123456789012345678901234567890123456789012'\n", ""},
		{"behind a length", "A=${#B}; ubuntu_PASSWORD=Secret12\n", "1: ubuntu_PASSWORD is not a hash"},
		{"in braces", "ubuntu_PASSWORD={Secret12}\n", "1: ubuntu_PASSWORD is not a hash"},
		{"Windows' lines", "A=1\r\nubuntu_PASSWORD='" + someHash + "'\r\n", "1: a carriage return"},
		{"a part of a hash", "ubuntu_PASSWORD='" + someHash[:60] + "'\n", "1: ubuntu_PASSWORD is not a whole hash"},
		{"like a hash", "ubuntu_PASSWORD='$6$Secret123456'\n", "1: ubuntu_PASSWORD is not a whole hash"},
		{"a function", "bfb_post_install()\n{\n\techo done > /mnt/x; }\n", ""},
		{"plain", "# first\nubuntu_PASSWORD=Secret12\n", "2: ubuntu_PASSWORD is not a hash"},
		{"plain in quotes", "ubuntu_PASSWORD='Secret12'\n", "1: ubuntu_PASSWORD is not a hash"},
		{"plain in pieces", "ubuntu_PASSWORD=Sec'ret'\"12\"\n", "1: ubuntu_PASSWORD is not a hash"},
		{"exported", "export ubuntu_PASSWORD=Secret12\n", "1: ubuntu_PASSWORD"},
		{"behind another", "A=1;ubuntu_PASSWORD=Secret12\n", "1: ubuntu_PASSWORD"},
		{"over two lines", "\nubuntu_PASS\\\nWORD=Secret12\n", "2: ubuntu_PASSWORD"},
		{"the BMC's", "BMC_PASSWORD=\"Secret12\"\n", "1: BMC_PASSWORD"},
		{"the BMC's users'", "BMC_USER_DEFAULT_PASSWORD_3=Secret12\n", "1: BMC_USER_DEFAULT_PASSWORD_3"},
		{"added to", "ubuntu_PASSWORD+=Secret12\n", "1: ubuntu_PASSWORD"},
		{"in a function", "f() { ubuntu_PASSWORD=Secret12; }\n", "1: ubuntu_PASSWORD"},
		{"in a list", "ubuntu_PASSWORD=(Secret12)\n", "1: ubuntu_PASSWORD is a list"},
		{"of an element", "ubuntu_PASSWORD[0]=Secret12\n", "1: ubuntu_PASSWORD"},
		{"in a here-document", "cat >x <<EOF\nroot_PASSWORD=Secret12\nEOF\n", "2: root_PASSWORD"},
		{"a hash in double quotes", "ubuntu_PASSWORD=\"" + someHash + "\"\n", "1: the hash for ubuntu_PASSWORD is not in single quotes"},
		{"a hash without quotes", "ubuntu_PASSWORD=" + someHash + "\n", "1: the hash for ubuntu_PASSWORD is not in single quotes"},
		{"computed", "ubuntu_PASSWORD=$(openssl passwd -6 x)\n", "1: what ubuntu_PASSWORD becomes"},
		{"ANSI quotes", "ubuntu_PASSWORD=$'Secret12'\n", "1: what ubuntu_PASSWORD becomes"},
		{"an open quote", "A=1\nB='x\n", "2: the single quote"},
		{"an open double quote", "A=1\nB=\"x\n", "2: the double quote"},
		{"a NUL", "A=1\n\x00", "2: a NUL byte"},
		{"too long", strings.Repeat("#", MaxConfigBytes+1), "more than the 128 KiB"},
	} {
		err := CheckConfig([]byte(test.text))
		switch {
		case test.wantErr == "" && err != nil:
			t.Errorf("%s: %v; want no error", test.name, err)
		case test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)):
			t.Errorf("%s: error %v; want %q", test.name, err, test.wantErr)
		case err != nil && strings.Contains(err.Error(), "Secret12"):
			t.Errorf("%s: %v: an error must not show the password", test.name, err)
		}
	}
}

func FuzzConfig(f *testing.F) {
	bash, err := exec.LookPath("bash")
	for _, seed := range []string{"ubuntu_PASSWORD='" + someHash + "'\n", "ubuntu_PASSWORD=\"a\\\"b\"", "A='x'y\\\nz # c", "x_PASSWORD=\\$1\\$aaaaaaaaa"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if CheckConfig(text) != nil || err != nil {
			return
		}
		// Only plain assignments are run: anything else could do anything.
		if !harmless(text) {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out, err := run.Output(ctx, run.Command{Argv: []string{bash, "--noprofile", "--norc", "-r", "-c", string(text) + "\nprintf '%s' \"$ubuntu_PASSWORD\""}, Env: []string{"PATH=/nonexistent"}, Unset: []string{"ubuntu_PASSWORD"}})
		if err != nil {
			return // bash does not take it either
		}
		if s := string(out); s != "" && !hashed().MatchString(s) {
			t.Errorf("%q was let through, and bash takes %q for the password", text, s)
		}
	})
}

func harmless(text []byte) bool {
	for _, c := range string(text) {
		if !strings.ContainsRune("abuntu_PASSWORDx='\"\\$./0123456789\n#=+", c) {
			return false
		}
	}
	return strings.HasPrefix(string(text), "ubuntu_PASSWORD=") && !strings.Contains(string(text), "$(")
}
