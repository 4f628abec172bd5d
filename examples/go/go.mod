module baton.example/chat

go 1.22
