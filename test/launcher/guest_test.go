package launcher_test

import (
	"os"
	"path/filepath"
	"testing"
)

// bootSector is a guest of 512 bytes: it prints a banner on the serial port,
// waits for the ACPI power button, says bye and powers off. It is up as soon
// as SeaBIOS is. Addresses are q35's, as SeaBIOS sets them up: PM1 status
// 0x600, enable 0x602, control 0x604.
func bootSector(kind string) []byte {
	code := []byte{
		0x31, 0xc0, // xor ax, ax
		0x8e, 0xd8, // mov ds, ax
		0xbe, 0x00, 0x7d, // mov si, banner
		0xe8, 0x20, 0x00, // call print
		0xba, 0x02, 0x06, // mov dx, 0x602
		0xb8, 0x00, 0x01, // mov ax, PWRBTN_EN
		0xef,             // out dx, ax
		0xba, 0x00, 0x06, // wait: mov dx, 0x600
		0xed,             // in ax, dx
		0xf6, 0xc4, 0x01, // test ah, PWRBTN_STS >> 8
		0x74, 0xf7, // jz wait
		0xbe, 0x40, 0x7d, // mov si, bye
		0xe8, 0x0a, 0x00, // call print
		0xba, 0x04, 0x06, // mov dx, 0x604
		0xb8, 0x00, 0x20, // mov ax, SLP_EN
		0xef,       // out dx, ax
		0xf4,       // hlt
		0xeb, 0xfd, // jmp to hlt
		0xac,       // print: lodsb
		0x84, 0xc0, // test al, al
		0x74, 0x06, // jz to ret
		0xba, 0xf8, 0x03, // mov dx, COM1
		0xee,       // out dx, al
		0xeb, 0xf5, // jmp print
		0xc3, // ret
	}
	switch kind {
	case "deaf": // never enables the button
		code[16] = 0x90
	case "brief": // does not wait for it
		code[24], code[25] = 0x90, 0x90
	}
	sector := make([]byte, 512)
	copy(sector, code)
	copy(sector[0x100:], "guest: up\r\n\x00")
	copy(sector[0x140:], "guest: bye\r\n\x00")
	sector[510], sector[511] = 0x55, 0xaa
	return sector
}

// guestDisk writes a boot sector to a disk of 1 MiB.
func guestDisk(t *testing.T, kind string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, bootSector(kind), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<20); err != nil {
		t.Fatal(err)
	}
	return path
}
